"""The ground of all folders: errors, files, checked readers, options, tables and pages."""
