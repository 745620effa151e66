"""Late answers: what a request gets for which there is no time to decide."""

from __future__ import annotations

from google.protobuf.message import Message

from nri_policy.nri.versions import Runtime
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.convert import container_of, fill_adjustment, update_of
from nri_policy.proto import nri_pb2


def answer_late(components: PluginComponents, method: str, request: Message) -> Message:
    """Admit the request with a safe placement; the decision follows as an update.

    A container under creation gets CPUs that are not exclusive; a resized container keeps its
    cpuset.
    """
    match request:
        case nri_pb2.ConfigureRequest():
            events = components.subscribe(Runtime.from_request(request))
            return nri_pb2.ConfigureResponse(events=events)
        case nri_pb2.SynchronizeRequest():
            return nri_pb2.SynchronizeResponse(more=request.more)
        case nri_pb2.CreateContainerRequest():
            placement = components.node.interim_placement(
                container_of(request.pod, request.container)
            )
            creation = nri_pb2.CreateContainerResponse()
            fill_adjustment(creation.adjust.linux, placement)
            return creation
        case nri_pb2.UpdateContainerRequest():
            each = request.container.id
            own = [
                update_of(
                    each, components.executor.state.unless_leaving(each, held), ignore_failure=False
                )
                for held in components.node.view.placements([each]).values()
            ]
            return nri_pb2.UpdateContainerResponse(update=own)
        case _:
            response: Message = getattr(nri_pb2, f"{method}Response")()
            return response
