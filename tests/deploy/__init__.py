"""Test the files of the deployment with the programs that read them."""
