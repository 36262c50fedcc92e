"""Tables and figures; reads results only."""
