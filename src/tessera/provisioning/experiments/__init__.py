"""The article's two experiments on any cluster, and what their samples say."""
