"""The ground of all folders.

It has errors, files, checked readers, options, tables and pages.
"""
