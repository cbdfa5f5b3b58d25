"""Training over seeds, settings and devices; runs and their folders; what trained seeds do."""
