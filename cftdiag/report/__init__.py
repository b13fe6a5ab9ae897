"""Rendering of a check, from the JSON-ready dict of schema ``cftdiag.check/1``: terminal, JSON, Markdown,
HTML, SARIF, JUnit.

Nothing here judges: verdict, severities and remedies are the check's. No module here imports torch; each is
imported when it is used.
"""
