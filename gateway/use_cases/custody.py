"""Custody of what runs: hears of exits, losses and proved deaths, and gives leases back then and only then (LEASE-2).

A patch lease of a lost runner takes one step more: the journal is recovered first, by the next runner. Refuses to know:
how a death is proved. Subscribed to the runner link by the application.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.use_cases.recovery import Recovery
from gateway.use_cases.services import Services
from runner.api import ProcessExited


class Custody:
    """`LinkListener`. `changed`: called when another runner serves, or none, and when one is proved dead."""

    def __init__(self, services: Services, recovery: Recovery, changed: Callable[[], None]) -> None:
        self._services = services
        self._recovery = recovery
        self._changed = changed

    def runner_up(self, instance_id: str) -> None:
        self._changed()
        self._recovery.runner_changed()

    def process_exited(self, instance_id: str, event: ProcessExited) -> None:
        self._services.processes.finish(event.process_id, event.termination)
        self._services.release(event.process_id)

    def runner_lost(self, instance_id: str) -> None:
        self._services.processes.drop_instance(instance_id)
        self._services.request_keys.clear()
        self._changed()

    def all_dead(self, instance_id: str) -> None:
        self._recovery.proved_dead(instance_id)
        for lease in self._services.leases.of_instance(instance_id):
            if lease.kind == "process":
                self._services.release(lease.holder_id)
            else:
                self._recovery.take_over(lease)
        self._changed()
