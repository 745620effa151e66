"""The Kubernetes API: a client, its errors, and the objects that nodes and the service share.

Owns requests to the API server. It must not know what the daemon or the service decides.

Others import from these modules:

| module | what it has |
|---|---|
| `client` | a client of the Kubernetes API: objects as JSON, one type of error |
| `connection` | the address and the credentials of the cluster |
| `errors` | the errors of requests to an API server |
| `events` | events about pods and Nodes, as `kubectl describe` shows them |
| `list_watch` | all objects of a kind, and then each change, without a gap |
| `pod_reader` | the object of a pod on this node |
| `readiness` | the taint, condition and Lease that show a Node's daemon |
| `why` | the annotation of a pod that explains its place |
"""
