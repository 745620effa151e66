"""Exposed resources: files in which containers see their CPUs and memory nodes.

A new container's files are written after the answer to its creation, at the latest when it starts:
they are not read before. A change is written later, by a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice

from nri_policy.foundation.wording import problem_of
from nri_policy.node import Node
from nri_policy.plugin.exposure import Exposure
from nri_policy.proto.nri_pb2 import Mount
from nri_policy.workload.pod import ContainerState

log = logging.getLogger(__name__)

SOON = 0.005  # seconds between a creation and its file, if the container does not start before
# A writing thread takes the interpreter from the loop at each system call: it begins well after the
# answer has left, and changes in quick succession are written together.
REST = 0.1  # seconds
MOST_WRITTEN = 32  # containers at a time
MAX_CREATION = 600.0  # seconds within which a container that a runtime has not listed may come
AGAIN = 60.0  # seconds until what could not be written is tried again, as on a disk that was full


class ExposedResources:
    """What the containers of one engine see."""

    def __init__(self, node: Node, exposure: Exposure) -> None:
        self._node = node
        self._exposure = exposure
        self._unseen: set[str] = set()  # containers whose files are not written yet
        self._new: list[str] = []  # containers with a running timer
        self._stale: dict[str, None] = {}  # containers whose files are out of date
        self._failed: dict[str, None] = {}  # containers whose files could not be written
        self._updating: asyncio.Task[None] | None = None

    def add(self, container_id: str) -> Mount | None:
        """Return the mount that shows a new container its resources, written a moment later.

        None where that fails, or the host does not have our folder: it must not keep the container
        from running.
        """
        if not self._exposure.on_host:
            return None
        try:
            mount = self._exposure.make(container_id)
        except (OSError, ValueError) as error:
            log.warning(
                "not-exposed", extra={"container": container_id, "error": problem_of(error)}
            )
            return None
        self._unseen.add(container_id)
        if not self._new:  # not only at its start: we may be gone by then
            asyncio.get_running_loop().call_later(SOON, self._show_new)
        self._new.append(container_id)
        return mount

    def _show_new(self) -> None:
        new, self._new = self._new, []
        for container_id in new:
            self.show(container_id)

    def show(self, container_id: str) -> None:
        """Write what a container is to see when it starts, unless it is written."""
        if container_id in self._unseen and container_id in self._node.view.placed:
            self._unseen.remove(container_id)
            self._note_failed(self._write({container_id: self._node.view.exposed(container_id)}))

    def close(self) -> None:
        """Write the files of new containers that wait."""
        for container_id in [*self._unseen]:
            self.show(container_id)

    def update(self, container_id: str) -> None:
        """Show a container its changed resources, without anyone waiting for the disk."""
        if container_id not in self._unseen:
            self._stale[container_id] = None
            self._write_soon()

    def _retry(self) -> None:
        """Write what could not be written."""
        self._stale.update(self._failed)
        self._failed.clear()
        self._write_soon()

    def _note_failed(self, container_ids: Sequence[str]) -> None:
        if container_ids and not self._failed:
            asyncio.get_running_loop().call_later(AGAIN, self._retry)
        self._failed.update(dict.fromkeys(container_ids))

    def _write_soon(self) -> None:
        if self._updating is None or self._updating.done():
            self._updating = asyncio.create_task(self._update_stale(), name="exposed resources")

    def restart(self) -> None:
        """Show all containers there are their resources, and later forget the others.

        These may be under creation, in no list yet, and could not start without the folder that
        they mount. How old a folder is does not count: the date may have been set forward.
        """
        placed = self._node.view.placed
        created = {
            each for each, held in placed.items() if held.container.state is ContainerState.CREATED
        }
        others = self._exposure.others(placed.keys())
        self._unseen = created | others
        if others:
            asyncio.get_running_loop().call_later(MAX_CREATION, self._forget, others)
        for container_id in placed:
            self.update(container_id)

    def _forget(self, container_ids: set[str]) -> None:
        """Remove the folders of containers that were not created meanwhile."""
        for container_id in container_ids - self._node.view.placed.keys():
            self.remove(container_id)

    def remove(self, container_id: str) -> None:
        """Forget a container that is gone."""
        self._unseen.discard(container_id)
        self._exposure.remove(container_id)

    async def _update_stale(self) -> None:
        while True:
            await asyncio.sleep(REST)
            view = self._node.view
            batch = [*islice(self._stale, MOST_WRITTEN)]
            for each in batch:
                del self._stale[each]
            resources = {each: view.exposed(each) for each in batch if each in view.placed}
            self._note_failed(await asyncio.to_thread(self._write, resources))
            if not self._stale:
                break

    def _write(self, resources: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
        """Show containers what they hold; return those where that failed. Can wait for the disk."""
        failed = []
        for container_id, each in resources.items():
            try:
                self._exposure.write(container_id, each)
            except FileNotFoundError:
                continue  # the container was created without the daemon, so without this mount
            except (OSError, ValueError) as error:
                failed.append(container_id)
                log.warning(
                    "not-exposed", extra={"container": container_id, "error": problem_of(error)}
                )
        return failed
