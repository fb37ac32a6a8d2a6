"""Many runs, each done exactly once, on one machine or a cluster."""
