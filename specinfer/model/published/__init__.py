"""Published drafts at work, in torch operations: DFlash, DSpark, P-EAGLE, MTP."""
