"""What a run is: one frozen recipe, the tables of names, and how names become objects."""
