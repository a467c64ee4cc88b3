"""`runner.ports.WatchBackend` on inotify: recursive watches on the event loop, with epochs (WATCH-1..3).

Events are invalidation hints. Whatever may have been missed becomes `resync_required`: at once, of the same epoch; and
again, of the next epoch, when a watcher that has scanned the tree anew runs in the old one's place. The first start,
too, says `resync_required`: what was read before it is not covered. Joined in `runner.__main__`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from weakref import WeakSet

from adapters.filesystem.beneath import Method, choose_opener
from adapters.inotify_watch.root import CHECK_S, Coverage, RootWatch
from adapters.inotify_watch.subscription import QUEUE_EVENTS, Subscription
from runner.ports import WatchEvent


class InotifyWatchBackend:
    """One watch a workspace; any number of subscriptions. All methods belong to one event loop.

    `max_watches`: directories of one root, by default an eighth of what the kernel gives a user; further ones are not
    watched and the coverage says `partial`.
    `first_delay_s`: before a lost watcher is replaced for the second time in a row; doubles from there.
    `check_s`: between checks that the root's path still leads to the watched directory.
    """

    def __init__(
        self,
        *,
        method: Method | None = None,
        max_watches: int | None = None,
        queue_events: int = QUEUE_EVENTS,
        first_delay_s: float = 1.0,
        check_s: float = CHECK_S,
    ) -> None:
        self._opener = choose_opener(method)
        self._max_watches, self._queue_events = max_watches, queue_events
        self._first_delay_s, self._check_s = first_delay_s, check_s
        self._roots: dict[str, RootWatch] = {}
        self._epochs: dict[str, int] = {}
        """Of workspaces whose watch was ended for one of another root: the last one used."""
        self._subscriptions: defaultdict[str, WeakSet[Subscription]] = defaultdict(WeakSet)
        self._starting = asyncio.Lock()
        self._closed = False

    async def watch(self, workspace_id: str, root: str) -> None:
        """Returns once the tree is scanned and watched; at once if it is already. Another root than before replaces the
        watch and raises the epoch.

        Raises `OSError` where the root cannot be watched; the caller may try again. Safe to cancel.
        """
        async with self._starting:
            before = self._roots.get(workspace_id)
            if self._closed or (before is not None and before.root == root):
                return
            if before is not None:
                del self._roots[workspace_id]
                self._epochs[workspace_id] = before.coverage.epoch
                await before.close()
            started = RootWatch(
                root,
                self._opener,
                lambda event: self._publish(workspace_id, event),
                epoch=self._epochs.get(workspace_id, 0),
                max_watches=self._max_watches,
                first_delay_s=self._first_delay_s,
                check_s=self._check_s,
            )
            await started.start()
            self._roots[workspace_id] = started

    def subscribe(self, workspace_id: str) -> Subscription:
        """Events from now on, whether the watch has started or not. Ends when the backend closes; dropping it is
        enough to end it earlier."""
        subscription = Subscription(self._queue_events)
        if self._closed:
            subscription.close()
        else:
            self._subscriptions[workspace_id].add(subscription)
        return subscription

    def coverage(self, workspace_id: str) -> Coverage | None:
        """How much of the tree is watched at this moment; None where no watch was started."""
        root = self._roots.get(workspace_id)
        return root.coverage if root is not None else None

    async def close(self) -> None:
        """Ends every watch, then every subscription. Idempotent."""
        self._closed = True
        async with self._starting:
            roots, self._roots = list(self._roots.values()), {}
            for root in roots:
                await root.close()
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.close()

    def _publish(self, workspace_id: str, event: WatchEvent) -> None:
        for subscription in list(self._subscriptions[workspace_id]):
            subscription.put(event)
