"""Every requirement of the contract, with a reason where no test covers it yet. Data only; read by test_requirements.

A test says what it covers with `@pytest.mark.covers("PROC-4")`. An id without such a test needs a `reason`; a reason
that outlives its need is an error too, so this page never claims a gap that is closed. `ATTACK_GAPS` does the same for
the attack probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Requirement:
    """`about`: what it is about, in a few words. `reason`: why no test covers it yet; None where tests do."""

    about: str
    reason: str | None = None


REQUIREMENTS: Mapping[str, Requirement] = {
    "ENV-1": Requirement("an environment is the operator's choice"),
    "ENV-2": Requirement("no tool takes environment, cwd, env, timeout, network or permission"),
    "ENV-3": Requirement("a workspace is a registered root; paths are relative to it"),
    "ENV-4": Requirement("unknown arguments are refused and grant nothing"),
    "ENV-5": Requirement("no model call anywhere"),
    "POL-1": Requirement("the gateway alone decides, by profile, before anything happens"),
    "POL-2": Requirement("network is set per workspace by the operator"),
    "POL-3": Requirement("approvals are set per workspace by the operator"),
    "POL-4": Requirement("no public setting pretends to enforce path globs"),
    "POL-5": Requirement("the registry is validated strictly; a bad reload keeps the old one"),
    "TOOL-1": Requirement("the tools and their shapes"),
    "TOOL-2": Requirement("a failing tool is a result, a malformed request a protocol error"),
    "TOOL-3": Requirement("a transport failure mints no operation"),
    "TOOL-4": Requirement("nothing is callable that is not a listed tool"),
    "FS-1": Requirement("reads work while a command runs; links are refused at open time"),
    "FS-2": Requirement("every bad path has its code"),
    "FS-3": Requirement("read: text or base64, whole-file version, size, truncation"),
    "FS-4": Requirement("find: bounded, sorted glob walk"),
    "FS-5": Requirement("lines and cursors reach all of it"),
    "FS-6": Requirement("grep: bounded content search"),
    "PATCH-1": Requirement("V4A with the product's rules, all or nothing"),
    "PATCH-2": Requirement("expected versions are the authoritative guard"),
    "PATCH-3": Requirement("a preview changes and records nothing"),
    "PATCH-4": Requirement("patches are handled in a process of their own"),
    "PATCH-5": Requirement("the status tells the truth, applied only by fresh hashes"),
    "PATCH-6": Requirement("a crash leaves the tree before or after"),
    "PATCH-7": Requirement("git is never used to apply or undo"),
    "OP-1": Requirement("an operation is recorded before work begins"),
    "OP-2": Requirement("keys replay results and refuse other requests"),
    "OP-3": Requirement("operation_status by id or key"),
    "OP-4": Requirement("recovery closes operations with what is proved"),
    "OP-5": Requirement("the ledger keeps hashes, never text"),
    "PROC-1": Requirement("exec_command answers with an id and what is known of the dispatch"),
    "PROC-2": Requirement("tty is the only terminal option at start"),
    "PROC-3": Requirement("process_status says how it ended"),
    "PROC-4": Requirement("output by absolute offsets, loss always marked"),
    "PROC-5": Requirement("eviction and resize have their codes"),
    "PROC-6": Requirement("wait status of the managed child, the command's exit beside it"),
    "PROC-7": Requirement("the runner owns processes; nothing survives it"),
    "PROC-8": Requirement("a failed start is proved or unknown, never guessed"),
    "PROC-9": Requirement("timeouts, limits, and terminate for the whole tree"),
    "PROC-10": Requirement("wait_ms returns early on output or exit"),
    "PROC-11": Requirement("a process is over when its main command exits"),
    "PROC-12": Requirement("request_key makes a retried exec safe"),
    "LEASE-1": Requirement("one mutation lease a workspace"),
    "LEASE-2": Requirement("held until death is proved, never leaked; one server a root"),
    "BOX-1": Requirement("every command in all namespaces, without capabilities, filtered"),
    "BOX-2": Requirement("the runner owns the helper's child"),
    "BOX-3": Requirement("preparation and transport are apart"),
    "BOX-4": Requirement("fails closed, off only as an explicit setting"),
    "BOX-5": Requirement("a late failure is never an unsandboxed run"),
    "BOX-6": Requirement("what a command sees, and what not"),
    "BOX-7": Requirement("protected names hold"),
    "BOX-8": Requirement("limits of one command, and which one struck"),
    "NET-1": Requirement("restricted: an empty network namespace"),
    "NET-2": Requirement("enabled: only through the managed proxy"),
    "NET-3": Requirement("a proxy named by the caller gives no authority"),
    "NET-4": Requirement("allow and deny lists of destinations"),
    "UDS-1": Requirement("the private socket's frames, hello and bounds"),
    "UDS-2": Requirement("a partly delivered mutation is uncertain, never resent"),
    "UDS-3": Requirement("in-process and worker behave the same"),
    "WATCH-1": Requirement("a recursive watcher with epochs and sequence numbers"),
    "WATCH-2": Requirement("whatever is lost becomes resync_required"),
    "WATCH-3": Requirement("events are hints and never a permission"),
    "APPR-1": Requirement("confirm: a hold before any operation or spawn"),
    "APPR-2": Requirement("off: the tools stay listed"),
    "APPR-3": Requirement("the states of a hold"),
    "APPR-4": Requirement("resume runs the ordinary path once"),
    "APPR-5": Requirement("a hold is no privilege"),
    "APPR-6": Requirement("bodies go once a hold is terminal"),
    "WORK-1": Requirement("a work has a queue of user instructions"),
    "WORK-2": Requirement("users write through the inbox"),
    "WORK-3": Requirement("a work does not close on open instructions"),
    "NETIF-1": Requirement("stdio, Unix socket and TCP, two protocol versions"),
    "NETIF-2": Requirement("peer credentials, bearer token, Host and Origin"),
    "NETIF-3": Requirement("health, metrics, redacted logs, audit"),
    "IMG-1": Requirement("a non-root, read-only image"),
    "IMG-2": Requirement("the least seccomp profile, each rule proved"),
    "IMG-3": Requirement("uid 0 refused in the image; doctor and selftest run there"),
    "IMG-4": Requirement("CI runs the image"),
    "BND-1": Requirement("one script for import direction, packages and endpoints"),
    "BND-2": Requirement("the upstream version of the patch engine is pinned"),
    "BND-3": Requirement("runner types are our own"),
}

ATTACK_GAPS: Mapping[str, str] = {}
"""Attack probe to the reason why its target is not met yet. Empty: every target is met."""
