"""The diagrams of the pages, drawn beforehand: a page of the site loads no program to draw them."""
