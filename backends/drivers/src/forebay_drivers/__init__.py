"""What Forebay's backends share: drivers over obstore and fsspec, their errors, and the choice between them."""
