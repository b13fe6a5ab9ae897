"""Put on PYTHONPATH by ``cftdiag check -- COMMAND``: makes every Python process of the command a rehearsal.

Imports only the standard library and ``cftdiag``; the user's own sitecustomize runs as if this file were not
there. A process that cannot be made a rehearsal must not run: it would train, and write, for real.
"""

import os
import sys


class _Package:
    """Finds ``cftdiag`` where the command's interpreter has none, and nothing else from that directory."""

    def __init__(self, directory):
        self._directory = directory

    def find_spec(self, name, path=None, target=None):
        import importlib.machinery

        if name != "cftdiag":
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._directory])


def _begin():
    import importlib.util

    if importlib.util.find_spec("cftdiag") is None:
        sys.meta_path.append(_Package(os.environ["CFTDIAG_PACKAGE"]))
    from cftdiag.rehearse import begin

    begin.begin()


def _chain(here):
    """Run the sitecustomize that would have been found without this directory."""
    import importlib.machinery
    import importlib.util

    sys.path[:] = [entry for entry in sys.path if entry != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("CFTDIAG_REHEARSE"):
    try:
        _begin()
    except BaseException as _error:  # noqa: BLE001 - whatever went wrong, the script must not run unguarded
        print(f"cftdiag: cannot rehearse ({type(_error).__name__}: {_error})", file=sys.stderr)
        sys.stderr.flush()
        os._exit(86)
_chain(os.path.dirname(os.path.abspath(__file__)))
