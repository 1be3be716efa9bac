"""Read run files, build what they name, and execute them.

    sottovoce run mine.toml

reads `mine.toml` (`runfile`), builds records, task, network and method (`build`), runs every variant with every seed
(`execute`), and writes a report (`sottovoce.reports`).
"""
