"""`headway bench WHAT`: a module here for each."""
