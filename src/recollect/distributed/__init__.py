"""One run on several processes: the launch environment, the shards of a batch, and the collectives between ranks.

Nothing is imported here, so that the command line can read its rank without importing torch.
"""
