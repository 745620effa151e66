"""The Kubernetes API: how a cluster is reached, what is asked of it, and what it answers.

Others import from these modules:

| module | what it has |
|---|---|
| `client` | a client of the Kubernetes API: objects as JSON, one error |
| `connection` | where the cluster is, and as whom we reach it |
| `errors` | what can go wrong between us and an API server |
| `events` | what `kubectl describe` shows of the pod or the Node that they are about |
| `follow` | what there is, and then whatever becomes of it, with no gap in between |
| `readiness` | what a Node says of the daemon on it: taint, condition, Lease |
| `pod_reader` | the object of a pod on this node |
"""
