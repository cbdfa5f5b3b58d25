"""Training many variants of an agent: sweeps, ablations, baselines."""
