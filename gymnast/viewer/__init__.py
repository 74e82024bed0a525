"""`gymnast view`: what runs did, as a page in a browser.

`runs.py` reads a run, `wire.py` says what the page gets, `server.py` serves it, `guard.py` says to
whom, and `single_file.py` writes it into one file. The page's own sources are in `page/`; `static/`
holds what is built of them.
"""
