"""The table of model options; flags of commands and services; errors about names."""
