"""The loaders that forebay is compared with, one module each: `loader(folder, threads)` gives an iterable of
`(images, labels)`, once per epoch. Everything is imported at the top of a module, so that imports can be told from the
loader's own start. What needs another format has a `convert(folder, target)`, and gets the target as its folder.
"""
