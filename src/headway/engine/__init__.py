"""The step loop: plan, submit, collect, apply; tokens in, text out."""
