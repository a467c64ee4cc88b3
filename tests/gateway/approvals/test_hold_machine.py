"""Holds against a model: any order of calls, grants, denials, resumes, lost rights, restarts and cut-off resumes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.errors import ToolError
from tests.gateway.core.application_rig import WRITE, Core

WIDE: dict[str, object] = {**WRITE, "approvals": "confirm"}
NARROW: dict[str, object] = {"approvals": "confirm"}
REQUESTS = [("apply_patch", n) for n in range(3)] + [("exec_command", n) for n in range(3)]
REQUEST = st.sampled_from(REQUESTS)
Request = tuple[str, int]


class Model:
    """One hold as it should be. `result`: what every resume gives once it is consumed."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.state = "pending"
        self.result: Any = None

    @property
    def live(self) -> bool:
        return self.state in ("pending", "granted")


class HoldMachine(RuleBasedStateMachine):
    """`seen`: how often each kind of step was taken, over all runs, so that the test can tell that it took them all."""

    holds: Bundle[str] = Bundle("holds")
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cs"))
        self.data = Path(tempfile.mkdtemp(prefix="cs", dir="/dev/shm"))  # syncs cost nothing there
        self.loop = asyncio.new_event_loop()
        self.models: dict[str, Model] = {}
        self.wide = True
        self.busy: str | None = None
        self.begun = 0
        self.expected_begun = 0
        self.core = self.started()

    # --- the gateway under test ---------------------------------------------------------------------------------------
    def run(self, awaitable: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(awaitable, 5)

        return self.loop.run_until_complete(bounded())

    def started(self) -> Core:
        async def make() -> Core:
            made = Core(self.base, {"demo": WIDE if self.wide else NARROW, "aside": WRITE}, data=self.data)
            await made.application.start()
            return made

        return self.run(make())  # type: ignore[no-any-return]

    def outcome(self, awaitable: Any) -> Any:
        """The answer as JSON values, or the error's code."""
        try:
            return self.run(awaitable).model_dump(exclude_none=True)
        except ToolError as error:
            self.error = error
            return error.code.value

    def call(self, request: Request) -> Any:
        tool, number = request
        app = self.core.application
        if tool == "apply_patch":
            return app.apply_patch("demo", f"patch {number}")
        return app.exec_command("demo", ("true", str(number)))

    def count(self) -> int:
        runner = self.core.link.first
        return self.begun + runner.count("apply_patch") + runner.count("start_process")

    def restart(self) -> None:
        self.run(self.core.application.close())
        self.replace()

    def replace(self) -> None:
        self.begun = self.count()
        self.busy = None
        self.core = self.started()

    def live_hold_of(self, request: Request) -> str | None:
        return next((i for i, model in self.models.items() if model.request == request and model.live), None)

    def runs_if_resumed(self, hold: str) -> bool:
        """Makes it so, unless the hold is over."""
        if self.models[hold].state == "pending":
            self.decide(hold, "grant")
        if not self.wide:
            self.the_right_comes_or_goes()
        if self.busy is not None:
            self.the_command_ends()
        return self.models[hold].state == "granted"

    # --- rules --------------------------------------------------------------------------------------------------------
    @initialize(target=holds)
    def nothing_yet(self) -> Any:
        return multiple()

    @rule(target=holds, request=REQUEST, explicit=st.booleans())
    def ask(self, request: Request, explicit: bool) -> Any:
        tool, number = request
        app = self.core.application
        if explicit:
            made = app.hold_patch("demo", f"patch {number}") if tool == "apply_patch" else None
            answer = self.outcome(made or app.hold_exec("demo", ("true", str(number))))
        else:
            answer = self.outcome(self.call(request))
        if not self.wide:
            assert answer == "UNAUTHORIZED"
            return multiple()
        known = self.live_hold_of(request)
        if explicit:
            approval_id = answer["approval_id"]
        else:
            assert answer == "APPROVAL_REQUIRED"
            approval_id = self.error.approval_id
        assert known in (None, approval_id), "a live hold was not reused"
        if known is not None:
            return multiple()
        assert approval_id not in self.models, "a hold that was over was used again"
        self.models[approval_id] = Model(request)
        return approval_id

    @rule(hold=holds, decision=st.sampled_from(["grant", "deny"]))
    def decide(self, hold: str, decision: str) -> None:
        model = self.models[hold]
        answer = self.outcome(self.core.application.approval_resolve(hold, decision))  # type: ignore[arg-type]
        if model.state != "pending":
            assert answer == "APPROVAL_CONFLICT"
            assert self.error.details["state"] == model.state
            return
        model.state = {"grant": "granted", "deny": "denied"}[decision]
        assert answer == {"approval_id": hold, "state": model.state}

    @rule(hold=holds)
    def resume(self, hold: str) -> None:
        self.resumed(hold)

    @rule(target=holds, request=REQUEST)
    def ask_grant_and_resume(self, request: Request) -> Any:
        if not self.wide:
            self.the_right_comes_or_goes()
        hold = self.ask(request, explicit=False)
        if not isinstance(hold, str):
            hold, fresh = str(self.live_hold_of(request)), False
        else:
            fresh = True
        if self.models[hold].state == "pending":
            self.decide(hold, "grant")
        self.resumed(hold)
        return hold if fresh else multiple()

    def resumed(self, hold: str) -> None:
        model = self.models[hold]
        answer = self.outcome(self.core.application.operation_resume(hold))
        self.seen[f"resume of {model.state}: {answer if isinstance(answer, str) else 'ran'}"] += 1
        if model.state == "consumed":
            assert answer == model.result
        elif model.state != "granted":
            assert answer == "APPROVAL_CONFLICT"
            assert self.error.details["state"] == model.state
        elif not self.wide:
            assert answer == "UNAUTHORIZED"
            model.state, model.result = "consumed", answer
        elif self.busy is not None:
            assert answer == "WORKSPACE_BUSY"
        else:
            assert answer["state"] == "consumed"
            model.state, model.result = "consumed", answer
            self.expected_begun += 1
            if model.request[0] == "exec_command":
                self.busy = answer["exec_command"]["process_id"]

    @rule(hold=holds)
    def lose_the_right_between_grant_and_resume(self, hold: str) -> None:
        if self.models[hold].state == "pending":
            self.decide(hold, "grant")
        if self.wide:
            self.the_right_comes_or_goes()
        self.resumed(hold)
        self.the_right_comes_or_goes()

    @rule(hold=holds)
    def resume_twice_at_once(self, hold: str) -> None:
        model = self.models[hold]
        app = self.core.application

        async def both() -> list[Any]:
            calls = [app.operation_resume(hold), app.operation_resume(hold)]
            return await asyncio.gather(*calls, return_exceptions=True)

        if not self.runs_if_resumed(hold):
            return
        answers = self.run(both())
        self.seen["two resumes at once"] += 1
        told = [a.model_dump(exclude_none=True) for a in answers if not isinstance(a, BaseException)]
        codes = [a.code.value for a in answers if isinstance(a, ToolError)]
        assert told
        assert codes in ([], ["APPROVAL_CONFLICT"])
        assert all(answer == told[0] for answer in told)
        model.state, model.result = "consumed", told[0]
        self.expected_begun += 1
        if model.request[0] == "exec_command":
            self.busy = told[0]["exec_command"]["process_id"]

    @precondition(lambda self: self.busy is not None)
    @rule()
    def the_command_ends(self) -> None:
        assert self.busy is not None
        self.core.link.first.exit(self.busy)
        self.busy = None

    @rule()
    def the_right_comes_or_goes(self) -> None:
        self.wide = not self.wide
        self.core.write({"demo": WIDE if self.wide else NARROW, "aside": WRITE})
        self.run(self.core.application.reload())

    @rule()
    def restarted(self) -> None:
        self.restart()

    @rule(hold=holds)
    def cut_off_in_the_middle_of_a_resume(self, hold: str) -> Any:
        """The store is gone from the moment the runner is asked, as after kill -9."""
        model = self.models[hold]
        if not self.runs_if_resumed(hold):
            return
        self.seen[f"cut off: {model.request[0]}"] += 1
        core, method = self.core, {"apply_patch": "apply_patch", "exec_command": "start_process"}[model.request[0]]

        async def cut() -> None:
            runner = core.link.first
            runner.hold[method] = asyncio.Event()
            resuming = asyncio.ensure_future(core.application.operation_resume(hold))
            asked = runner.asked.setdefault(method, asyncio.Event())
            asked.clear()
            await asked.wait()
            await core.application._database.close()
            runner.hold[method].set()
            await asyncio.wait([resuming])
            resuming.exception()
            await core.application.close()

        self.run(cut())
        self.replace()
        self.expected_begun += 1
        answer = self.outcome(self.core.application.operation_resume(hold))
        # The runner of these tests keeps no journal: what was minted and left nothing behind had changed nothing.
        wanted = {"apply_patch": "FILE_OPERATION_FAILED", "exec_command": "APPROVAL_AMBIGUOUS"}
        assert answer == wanted[model.request[0]]
        model.state, model.result = "consumed", answer

    # --- always -------------------------------------------------------------------------------------------------------
    @invariant()
    def every_hold_is_as_the_model_has_it_and_nothing_ran_twice(self) -> None:
        listed = {hold.approval_id: hold for hold in self.run(self.core.application.list_holds(limit=1000))}
        assert {i: hold.state for i, hold in listed.items()} == {i: m.state for i, m in self.models.items()}
        assert self.count() == self.expected_begun

    def teardown(self) -> None:
        self.run(self.core.application.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.base)
        shutil.rmtree(self.data)


@pytest.mark.timeout(120)
@pytest.mark.covers("APPR-1", "APPR-3", "APPR-4", "APPR-5", "APPR-6")
def test_holds_follow_their_model_for_two_thousand_steps() -> None:
    run_state_machine_as_test(
        HoldMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),  # a failure is the same one each time; to shrink it takes minutes
            suppress_health_check=list(HealthCheck),
        ),
    )
    wanted = {f"resume of {state}: APPROVAL_CONFLICT" for state in ("pending", "denied")}
    wanted |= {f"resume of granted: {end}" for end in ("ran", "UNAUTHORIZED", "WORKSPACE_BUSY")}
    wanted |= {f"resume of consumed: {end}" for end in ("ran", "UNAUTHORIZED", "APPROVAL_AMBIGUOUS")}
    wanted |= {"two resumes at once", "cut off: apply_patch", "cut off: exec_command"}
    assert wanted <= HoldMachine.seen.keys(), f"never taken: {wanted - HoldMachine.seen.keys()}"
