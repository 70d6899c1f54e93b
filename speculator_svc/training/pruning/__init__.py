"""`specinfer train prune`: a smaller model of the parts of the target that matter most."""
