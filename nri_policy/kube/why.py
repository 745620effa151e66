"""The annotation of a pod that says where its containers are, and why."""

WHY = "placement.nri/why"
