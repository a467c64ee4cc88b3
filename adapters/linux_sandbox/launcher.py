"""Starts commands in the sandbox that their terms ask for: implements `runner.ports.SandboxLauncher`.

One helper serves all sandboxed commands, another the unconfined ones of operators who switched the sandbox off; each is
started when first needed and again after its death. Every doubt ends in a refusal: nothing runs with less than its
terms promise. Refuses to decide policy. Joined by the two `__main__` modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from adapters.linux_sandbox import cgroups, report
from adapters.linux_sandbox.cgroups import Leaf, NoSubtree, Subtree
from adapters.linux_sandbox.channels import SetUpReport, StartChannels
from adapters.linux_sandbox.client import HelperClient, HelperGone, Started, end_child, reap, reap_pidfd
from adapters.linux_sandbox.cover_watch import CoverWatch
from adapters.linux_sandbox.failures import (
    ended_already,
    errno_name,
    failure_of,
    insist,
    launch_failed,
    not_begun,
)
from adapters.linux_sandbox.host import HostFacts, look_up
from adapters.linux_sandbox.network import HandOver, NetworkProxy
from adapters.linux_sandbox.orphans import find_orphans
from adapters.linux_sandbox.plan import Abilities, PlanError, build_plan, plan_id
from adapters.linux_sandbox.pool import SandboxPool
from adapters.linux_sandbox.preparing import prepare
from adapters.linux_sandbox.probing import (
    KnownPlan,
    Probe,
    current_namespaces,
    is_idmap_failure,
    temporary_workspace,
    weaken,
)
from adapters.linux_sandbox.process import SandboxedProcess
from adapters.linux_sandbox.remedies import IDENTITY, remedy_for, remedy_without_place
from adapters.linux_sandbox.roots import Roots
from adapters.linux_sandbox.waiting import NotUsable, WaitingSandbox
from runner.api import Isolation, IsolationReport, Limits, Protection, WorkspaceTerms
from runner.ports import LaunchFailed, LaunchRequest, LaunchUncertain, ManagedProcess, SandboxUnavailable
from sandbox_helper.protocol import Failure, Plan, ProtocolError, Run, parse_object


class LinuxSandboxLauncher:
    """`liveness_fd`: inherited by the helper and every PID 1; its other end reads EOF once all of them are gone.
    `proxy`: for workspaces whose network is `enabled`, closed with the launcher; without one they are refused.
    `helper_options`, `helper_prefix`: more arguments for the helper, and a program to start it through (tests).
    `find_groups`: looks for the subtree of control groups that commands get leaves of, once. `prepared`: how many
    sandboxes may wait for a command, at most."""

    def __init__(
        self,
        liveness_fd: int | None = None,
        *,
        proxy: NetworkProxy | None = None,
        helper_options: Sequence[str] = (),
        helper_prefix: Sequence[str] = (),
        find_groups: Callable[[], Subtree | NoSubtree] = cgroups.find,
        prepared: int = 0,
    ) -> None:
        self._pool = SandboxPool(prepared, self._prepare)
        self._find_groups = find_groups
        self._groups: Subtree | NoSubtree | None = None
        self._proxy = proxy
        self._liveness_fd = liveness_fd
        self._options, self._prefix = tuple(helper_options), tuple(helper_prefix)
        self._host: HostFacts | None = None
        self._helpers: dict[str, HelperClient] = {}
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._probe: Probe | None = None
        self._by_root: dict[tuple[str, str], Probe] = {}
        self._outside: dict[str, str] = {}
        self._plans: dict[tuple[str, bool], KnownPlan] = {}
        self._isolations: dict[tuple[str, bool], tuple[KnownPlan, tuple[Protection, ...], Isolation]] = {}
        self._roots = Roots()
        self._running: dict[int, SandboxedProcess] = {}
        self._told: set[int] = set()
        """Every PID 1 that a helper has told of, until it is reaped: no orphan, whatever becomes of the helper."""
        self._closed = False

    async def start(self) -> None:
        """Starts the helper ahead of the first command. A machine that has no sandbox is not an error yet: `report`
        and `launch` say so."""
        await self._facts()
        try:
            await self._probe_for(None)
        except (SandboxUnavailable, LaunchFailed):
            pass

    # --- helpers ----------------------------------------------------------------------------------------------------
    async def _helper(self, mode: str) -> HelperClient:
        """Raises SandboxUnavailable."""
        async with self._starting:
            if self._closed:
                raise SandboxUnavailable("helper", None, "the runner is shutting down")
            helper = self._helpers.get(mode)
            if helper is not None and not helper.gone.is_set():
                return helper
            if helper is not None:
                await helper.close()
            helper = HelperClient(mode, self._liveness_fd, self._options, self._prefix)
            gone = helper
            helper.on_gone = lambda: self._pool.discard(lambda sandbox: sandbox.helper is gone)
            try:
                await helper.start()
                await helper.adopt([p.pidfd for p in self._running.values() if p.helper_mode == mode])
            except HelperGone as error:
                raise self._unavailable(error) from error
            self._helpers[mode] = helper
            return helper

    @staticmethod
    def _unavailable(error: HelperGone) -> SandboxUnavailable:
        failure = error.failure
        if failure is None:
            return SandboxUnavailable("helper", None, str(error))
        feature, remedy = remedy_for(failure)
        message = f"the sandbox cannot be made: {failure.message}: {failure.path or feature}"
        return SandboxUnavailable(feature, failure.errno, message, remedy=remedy)

    # --- probing ----------------------------------------------------------------------------------------------------
    async def _probed(self) -> Probe:
        """What this machine offers, from a real sandbox in a directory of its own; once for each helper.

        Raises SandboxUnavailable where a required protection is missing.
        """
        helper = await self._helper("sandbox")
        async with self._probing:
            probe = self._probe
            if probe is None or probe.helper is not helper:
                try:
                    async with temporary_workspace() as terms:
                        probe = await self._run_probe(helper, terms)
                except OSError as error:
                    message, name = (
                        f"no temporary directory for the sandbox's probe: {error.strerror}",
                        errno_name(error),
                    )
                    raise SandboxUnavailable("probe", name, message, remedy=remedy_without_place(name)) from error
                self._probe = probe
        return probe

    async def _run_probe(self, helper: HelperClient, terms: WorkspaceTerms) -> Probe:
        """Bends the plan to what is missing, as far as the ladder allows; then SandboxUnavailable."""
        groups = await self._subtree()
        abilities = Abilities(leaf=groups.controllers if isinstance(groups, Subtree) else None)
        while True:
            known = await self._plan(terms, abilities)
            plan = known.plan
            said = await self._posture(helper, known)
            if not isinstance(said, Failure):
                try:
                    no_group = None if isinstance(groups, Subtree) else groups
                    found = report.protections(said, self._outside, plan, abilities, terms, no_group)
                except report.PostureError as error:
                    raise SandboxUnavailable("posture", None, str(error)) from error
                missing = next((p for p in found if p.required and p.state == "off"), None)
                if missing is not None:
                    raise SandboxUnavailable(
                        missing.name, missing.errno, f"the sandbox lacks {missing.name}", remedy=missing.remedy
                    )
                return Probe(helper, abilities, found)
            status = await _root_status(terms)
            weaker = weaken(abilities, said, (status.st_uid, status.st_gid))
            if weaker is None and said.stage == "chdir":
                raise launch_failed(said)  # the sandbox stands; it is the workspace that lets nobody in
            if weaker is None:
                # Only root maps ids; for another uid the call was refused by a filter around the helper.
                mapped = is_idmap_failure(said) and (await self._facts()).uid == 0
                feature, remedy = ("identity", IDENTITY) if mapped else remedy_for(said)
                message = f"the sandbox cannot be made: {said.stage}: {said.message} {said.path}".rstrip()
                raise SandboxUnavailable(feature, said.errno, message, remedy=remedy)
            if weaker.leaf is None and abilities.leaf is not None:
                groups = self._groups = NoSubtree(f"no command can start in one: {said.message}", said.errno)
            abilities = weaker

    async def _posture(self, helper: HelperClient, known: KnownPlan) -> dict[str, Any] | Failure:
        """The record of a sandbox under a plan. Raises SandboxUnavailable, LaunchFailed."""
        try:
            leaf = await self._leaf(known)
        except OSError as error:
            return Failure("leaf", errno_name(error), error.filename or "", error.strerror or str(error))
        channels, terms = StartChannels(tty=False), known.terms
        channels.open()
        try:
            run = Run(0, "", (), None, "posture", leaf is not None)
            started = await helper.run(known.plan, known.id, run, [*channels.for_child(), *_fds(leaf)])
            channels.close_child_ends()
            if isinstance(started, Failure):
                return started
            hand_over = HandOver(self._proxy, terms, "probe", started.pidfd)
            said = await channels.read_report(hand_over)
            # Before it is reaped: whether it has ended or not, the kernel still tells where it was.
            inside = leaf is None or await asyncio.to_thread(leaf.holds, started.pid)
            await reap_pidfd(started.pidfd, kill=not said.executing)
            if not inside:
                raise SandboxUnavailable("posture", None, "the probe ran outside its control group")
            if hand_over.failure is not None:
                raise hand_over.failure
            if not said.executing:
                return failure_of(said)
            return parse_object(channels.drain_output(), "posture")
        except ProtocolError as error:
            raise SandboxUnavailable("posture", None, f"the probe printed no record: {error}") from error
        finally:
            channels.close()
            if leaf is not None:
                await asyncio.to_thread(leaf.close)

    async def _subtree(self) -> Subtree | NoSubtree:
        if self._groups is None:
            self._groups = await asyncio.to_thread(self._find_groups)
        return self._groups

    async def _leaf(self, known: KnownPlan) -> Leaf | None:
        """A control group for one command, where its plan counts on one. Raises OSError."""
        if known.abilities.leaf is None:
            return None
        groups = await self._subtree()
        if not isinstance(groups, Subtree):
            raise OSError(errno.ENOENT, f"the control groups are gone: {groups.detail}")
        return await asyncio.to_thread(cgroups.make_leaf, groups, known.terms.limits)

    async def _probe_for(self, terms: WorkspaceTerms | None) -> Probe:
        """What commands of `terms` get: the general probe's finding, bent further where the workspace's own file system
        takes no id map. A helper that is lost meanwhile is replaced once: no command is under way yet.

        Raises SandboxUnavailable, LaunchFailed.
        """
        try:
            return await self._probe_once(terms)
        except HelperGone:
            pass
        try:
            return await self._probe_once(terms)
        except HelperGone as error:
            raise self._unavailable(error) from error

    async def _probe_once(self, terms: WorkspaceTerms | None) -> Probe:
        probe = await self._probed()
        if terms is None or ((await self._facts()).uid != 0 and terms.network == "restricted"):
            return probe
        known = self._by_root.get((terms.root, terms.network))
        if known is None or known.helper is not probe.helper:
            # Without the protected names: a running command's covers must not be touched.
            known = await self._run_probe(probe.helper, terms.model_copy(update={"protect": ()}))
            self._by_root[terms.root, terms.network] = known
        return known

    # --- launching --------------------------------------------------------------------------------------------------
    async def launch(self, request: LaunchRequest) -> ManagedProcess:
        """See the port. A cancelled launch ends what it started."""
        inner = asyncio.create_task(self._launch_afresh(request))
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            await asyncio.gather(inner, return_exceptions=True)
            if not inner.cancelled() and inner.exception() is None:
                process = inner.result()
                process.kill()
                await process.wait()
                process.close()
            raise

    async def _launch_afresh(self, request: LaunchRequest) -> SandboxedProcess:
        """Once more where something of the host's allow-list is gone since it was looked up: nothing has run yet."""
        facts = self._host
        try:
            return await self._launch(request)
        except LaunchFailed as error:
            if (error.stage, error.errno) != ("mounts", "ENOENT"):
                raise
            self._host = None
            if await self._facts() == facts:
                raise
            self._plans.clear()
        return await self._launch(request)

    async def _launch(self, request: LaunchRequest) -> SandboxedProcess:
        try:
            helper, known, isolation = await self._ready(request)
            waiting = self._pool.take(known, helper)
        except (LaunchFailed, SandboxUnavailable):
            raise
        except Exception as error:
            raise not_begun(error) from error
        try:
            with self._pool.starting():
                made = None if waiting is None else await self._use(waiting, request, isolation)
                return made or await self._from_nothing(helper, known, request, isolation)
        finally:
            self._pool.refill()

    async def _from_nothing(
        self, helper: HelperClient, known: KnownPlan, request: LaunchRequest, isolation: Isolation
    ) -> SandboxedProcess:
        channels = StartChannels(request.tty_size is not None)
        try:
            channels.open()
        except OSError as error:
            message = f"no descriptors for the command: {error.strerror}"
            raise LaunchFailed("descriptors", errno_name(error), message) from error
        except Exception as error:
            raise not_begun(error) from error
        try:
            return await self._start(helper, known, request, channels, isolation)
        finally:
            channels.close()

    async def _ready(self, request: LaunchRequest) -> tuple[HelperClient, KnownPlan, Isolation]:
        """The helper, the plan and what it isolates. Raises SandboxUnavailable, LaunchFailed."""
        terms = request.terms
        if terms.sandbox == "off":
            helper, abilities = await self._helper("plain"), Abilities()
            found: tuple[Protection, ...] = ()
        else:
            if terms.network == "enabled" and self._proxy is None:
                raise _no_proxy()
            probe = await self._probe_for(terms)
            helper, found, abilities = probe.helper, probe.found, probe.abilities
        known = await self._plan(terms, abilities, terminal=request.tty_size is not None)
        said = self._isolations.get(known.key)
        if said is None or said[0] is not known or said[1] is not found:
            isolation = report.isolation_of(known.plan, found, known.terms.limits, abilities.leaf)
            said = self._isolations[known.key] = (known, found, isolation)
        return helper, known, said[2]

    async def plan_for(self, terms: WorkspaceTerms, *, terminal: bool) -> Plan:
        """The plan that `launch` would run under. Raises SandboxUnavailable, LaunchFailed."""
        if terms.sandbox == "off":
            return (await self._plan(terms, Abilities(), terminal=terminal)).plan
        if terms.network == "enabled" and self._proxy is None:
            raise _no_proxy()
        # Whoever runs it makes no control group, so that each process has to have its own limits.
        abilities = replace((await self._probe_for(terms)).abilities, leaf=None)
        return (await self._plan(terms, abilities, terminal=terminal)).plan

    async def _facts(self) -> HostFacts:
        if self._host is None:
            self._outside = await asyncio.to_thread(current_namespaces)
            self._host = await asyncio.to_thread(look_up)
        return self._host

    async def _plan(self, terms: WorkspaceTerms, abilities: Abilities, *, terminal: bool = False) -> KnownPlan:
        try:
            facts = await self._facts()
            known = self._plans.get((terms.root, terminal))
            if known is None or known.terms != terms or known.abilities != abilities:
                # In a thread: the first plan of an `enabled` network loads a large package.
                plan = await asyncio.to_thread(build_plan, terms, facts, abilities, terminal=terminal)
                known = KnownPlan(terms, abilities, plan, plan_id(plan), terminal)
                self._plans[known.key] = known
            return known
        except PlanError as error:
            raise LaunchFailed("mounts", "EINVAL", error.message) from error

    async def _start(
        self,
        helper: HelperClient,
        known: KnownPlan,
        request: LaunchRequest,
        channels: StartChannels,
        isolation: Isolation,
    ) -> SandboxedProcess:
        terms = request.terms
        leaf: Leaf | None = None
        made: SandboxedProcess | None = None
        started: Started | Failure | None = None
        entered = False
        try:
            try:
                leaf = await self._leaf(known)
            except OSError as error:
                message = f"no control group for the command: {error.strerror or error}"
                raise LaunchFailed("limits", errno_name(error), message, path=error.filename) from error
            argv = tuple(os.fsencode(argument) for argument in request.argv)
            run = Run(0, "", argv, request.tty_size, "exec", leaf is not None)
            await self._roots.enter(terms.root)
            entered = True
            started = await helper.run(known.plan, known.id, run, [*channels.for_child(), *_fds(leaf)])
            channels.close_child_ends()
            if isinstance(started, Failure):
                raise launch_failed(started)
            # Before anything else is waited for: a start that was lost with its helper looks for orphans next.
            self._told.add(started.pid)
            hand_over = HandOver(self._proxy, terms, request.process_id, started.pidfd)
            said = await channels.read_report(hand_over)
            self._roots.litter(terms.root, [cover.name for cover in said.covers if cover.placeholder])
            if not said.executing:
                # Where covering failed half-way, the report names none of the placeholders made until then.
                self._roots.litter(terms.root, terms.protect)
                failure = hand_over.failure or launch_failed(failure_of(said))
                await self._end_broken_start(started, None)
                raise failure

            made = self._process(known, started, channels, isolation, leaf)
            await self._look_after(made, helper, terms.root, said)
            return made
        except (LaunchFailed, SandboxUnavailable):
            raise
        except Exception as error:
            if not entered:
                raise not_begun(error) from error
            # The helper is lost, or there was no memory, no descriptor, a fault of ours. Before the answer came the
            # request may have been sent all the same, and after it the command may run.
            self._roots.litter(terms.root, terms.protect)
            if isinstance(started, Started):
                child = started
                await insist(lambda: self._end_broken_start(child, made))
                message = f"the start broke off ({type(error).__name__}) and its command was ended"
                raise LaunchUncertain(message, ended=ended_already) from error
            if isinstance(started, Failure):
                raise LaunchFailed(started.stage, started.errno, started.message) from error
            if isinstance(error, ProtocolError):
                message = f"the command does not fit the helper's request: {error}"
                raise LaunchFailed("exec", "E2BIG", message) from error
            raise await insist(lambda: self._settle_lost_start(helper, channels)) from error
        finally:
            if made is None:
                if leaf is not None:
                    await asyncio.to_thread(leaf.close)
                if entered:
                    await self._roots.leave(terms.root)

    async def _use(
        self, waiting: WaitingSandbox, request: LaunchRequest, isolation: Isolation
    ) -> SandboxedProcess | None:
        """The command in a sandbox that waited for one, or None where nothing has run in it, so that a start from
        nothing comes next. Raises LaunchFailed, LaunchUncertain."""
        root, child = request.terms.root, waiting.started
        made: SandboxedProcess | None = None
        used = entered = False
        try:
            await self._roots.enter(root)
            entered = True
            argv = tuple(os.fsencode(argument) for argument in request.argv)
            hand_over = HandOver(self._proxy, request.terms, request.process_id, child.pidfd)
            said = await waiting.use(argv, request.tty_size, hand_over)
            if not said.executing:
                raise launch_failed(failure_of(said))
            made = self._process(waiting.known, child, waiting.channels, isolation, waiting.leaf, waiting.mounts)
            await self._look_after(made, waiting.helper, root, said)
            used = True
            return made
        except LaunchFailed:
            raise
        except Exception as error:
            if isinstance(error, NotUsable) or not waiting.gone_on:
                return None
            message = f"the start broke off ({type(error).__name__}) and its command was ended"
            raise LaunchUncertain(message, ended=ended_already) from error
        finally:
            if made is not None and not used:
                broken = made
                await insist(lambda: self._end_broken_start(child, broken))
            if made is None:
                await insist(waiting.end)
                if entered:
                    await self._roots.leave(root)

    def _process(
        self,
        known: KnownPlan,
        started: Started,
        channels: StartChannels,
        isolation: Isolation,
        leaf: Leaf | None,
        mounts: int | None = None,
    ) -> SandboxedProcess:
        async def ended() -> None:
            self._running.pop(started.pid, None)
            self._told.discard(started.pid)
            if mounts is not None:
                self._pool.retire(mounts)
            await self._roots.leave(known.terms.root)
            self._pool.refill()

        taken = channels.take()
        try:
            made = SandboxedProcess(started.pid, started.pidfd, taken, isolation, known.plan, ended, leaf)
        except BaseException:
            taken.close()
            raise
        self._running[started.pid] = made
        return made

    async def _look_after(self, made: SandboxedProcess, helper: HelperClient, root: str, said: SetUpReport) -> None:
        if said.covers:
            made.watch_covers(CoverWatch(root, said.covers))
        if helper.gone.is_set():
            # The one that took its place was given what ran then, and this may have come too late for that.
            async with self._starting:
                heir = self._helpers.get(made.helper_mode)
                if heir is not None and not heir.gone.is_set():
                    with contextlib.suppress(HelperGone):  # its own heir is given it
                        await heir.adopt([made.pidfd])

    async def _prepare(self, known: KnownPlan) -> WaitingSandbox | None:
        """For the pool: one that waits, or None."""
        helper = self._helpers.get("sandbox")
        if helper is None or helper.gone.is_set() or self._closed:
            return None
        leaf: Leaf | None = None
        channels = StartChannels(known.terminal, narrow=True)
        made: WaitingSandbox | None = None
        asked = False
        try:
            leaf = await self._leaf(known)
            channels.open()
            asked = True
            made = await prepare(helper, known, leaf, channels, self._told)
        except Exception:  # noqa: BLE001 - whatever it is, commands start from nothing
            if asked:
                await insist(lambda: self._settle_lost_start(helper, channels))
        finally:
            if made is None:
                channels.close()
                if leaf is not None:
                    await asyncio.to_thread(leaf.close)
        return made

    @property
    def pool(self) -> SandboxPool:
        """For measurements and tests."""
        return self._pool

    async def tidy(self, root: str, protect: Sequence[str]) -> tuple[str, ...]:
        """See the port. It is asked for whenever a registry was taken into force, so nothing that was prepared under
        an earlier one is kept."""
        self._pool.discard(lambda _: True)
        return tuple(await self._roots.tidy(root, protect))

    async def _settle_lost_start(self, helper: HelperClient, channels: StartChannels) -> LaunchFailed | LaunchUncertain:
        """The helper died with the start under way, or its answer was lost: ends it and what it may have made.
        Returns what is proved; may be repeated until it does."""
        dead_session = helper.session
        await helper.kill()
        channels.close_child_ends()
        channels.stop()
        for pid in await asyncio.to_thread(find_orphans, dead_session, set(self._told)):
            await reap(pid)
        said = await channels.read_report()
        await helper.close()
        if said.executing:
            return LaunchUncertain(
                "the sandbox helper was lost while the command started; it was ended", ended=ended_already
            )
        return LaunchFailed(
            "namespace", "EPIPE", "the sandbox helper was lost before the command started",
            remedy="Start the command again; the helper is restarted.",
        )  # fmt: skip

    async def _end_broken_start(self, started: Started, made: SandboxedProcess | None) -> None:
        """Ends a managed child that becomes no command; once more where it failed. `made`: it holds the descriptors."""
        if made is not None:
            made.kill()
            await made.wait()
            made.close()
            return
        await end_child(started.pidfd)
        os.close(started.pidfd)
        self._told.discard(started.pid)

    # --- reporting --------------------------------------------------------------------------------------------------
    async def report(self, terms: WorkspaceTerms | None) -> IsolationReport:
        """See the port. Never raises for a protection that is missing: that is what it reports."""
        if terms is not None and terms.sandbox == "off":
            return report.switched_off()
        try:
            if terms is not None and terms.network == "enabled" and self._proxy is None:
                raise _no_proxy()
            probe = await self._probe_for(terms)
        except SandboxUnavailable as error:
            return report.unavailable(error.feature, error.errno, error.message, error.remedy)
        except LaunchFailed as error:
            feature = "managed_proxy" if (error.stage, error.path) == ("network", "proxy") else error.stage
            return report.unavailable(feature, error.errno, error.message, error.remedy)
        return report.available(probe.found, terms.limits if terms is not None else Limits())

    async def close(self) -> None:
        """See the port."""
        self._closed = True
        await self._pool.close()
        helpers, self._helpers = list(self._helpers.values()), {}
        for helper in helpers:
            await helper.close()
        if self._proxy is not None:
            await self._proxy.close()


def _fds(leaf: Leaf | None) -> tuple[int, ...]:
    return () if leaf is None else (leaf.fd,)


async def _root_status(terms: WorkspaceTerms) -> os.stat_result:
    """Raises LaunchFailed."""
    try:
        return await asyncio.to_thread(os.stat, terms.root, follow_symlinks=False)
    except OSError as error:
        message, remedy = f"the workspace's root: {error.strerror}", "Restore the directory, or register another one."
        raise LaunchFailed("mounts", errno_name(error), message, remedy=remedy) from error


def _no_proxy() -> SandboxUnavailable:
    message = "network is enabled, but this runner has no managed proxy for it"
    return SandboxUnavailable("managed_proxy", None, message, remedy="Set the workspace's network to restricted.")
