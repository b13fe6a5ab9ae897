"""Put on PYTHONPATH by ``cftdiag run``: starts the monitor in processes of the watched command that import
torch, and in no others.

Imports nothing but the standard library, never torch; the user's own sitecustomize runs as if this file were
not there. Whatever fails here must leave the process as it would have been.
"""

import sys


def _unwatched():
    """True for processes that import torch and train nothing: launchers and Inductor's compile workers."""
    import os

    words = getattr(sys, "orig_argv", sys.argv)[1:]
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    launchers = (
        "torch.distributed.run",
        "torch.distributed.launch",
        "torch._inductor.compile_worker",
        "accelerate.commands",
        "deepspeed.launcher",
    )
    if module.startswith(launchers):
        return True
    scripts = [word for word in words if not word.startswith("-")][:1]
    if not scripts:
        return False
    name = os.path.basename(scripts[0])
    return (
        name in ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
        or "/torch/_inductor/compile_worker/" in scripts[0]
    )


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


def _watch_imports():
    """Call ``cftdiag.monitor.injected`` once torch, and later once Dynamo, has been imported."""
    import importlib.abc
    import importlib.util
    import os

    settings = os.environ.get("CFTDIAG_RUN")
    package = os.environ.get("CFTDIAG_PACKAGE")
    if not settings or _unwatched():
        return

    def imported(name):
        try:
            # Another interpreter than ours may not have this package: lend it ours for the import alone.
            lent = [package] if package and importlib.util.find_spec("cftdiag") is None else []
            sys.path.extend(lent)
            try:
                from cftdiag.monitor import injected
            finally:
                for entry in lent:
                    sys.path.remove(entry)
            injected.imported(name, settings)
        except Exception as error:  # noqa: BLE001 - the script must run as if it were not watched
            print(f"cftdiag: this process is not watched ({type(error).__name__}: {error})", file=sys.stderr)

    left = {"torch", "torch._dynamo"}

    class Loader(importlib.abc.Loader):
        def __init__(self, inner, name):
            self._inner = inner
            self._name = name

        def __getattr__(self, attribute):
            return getattr(self._inner, attribute)

        def create_module(self, spec):
            return self._inner.create_module(spec)

        def exec_module(self, module):
            # The module must not keep this wrapper: resources and reloads ask the loader that is in its spec.
            module.__spec__.loader = module.__loader__ = self._inner
            self._inner.exec_module(module)
            if self._name in left:
                left.remove(self._name)
                imported(self._name)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            # asked for without an import too: by whoever wants to know whether there is a torch
            if name not in left:
                return None
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = Loader(spec.loader, name)
                    return spec
            return None

    sys.meta_path.insert(0, Finder())


try:
    import os as _os

    _watch_imports()
    _HERE = _os.path.dirname(_os.path.abspath(__file__))
except Exception as _error:  # noqa: BLE001 - nothing of ours may keep an interpreter from starting
    print(f"cftdiag: this process is not watched ({type(_error).__name__}: {_error})", file=sys.stderr)
_chain(_HERE)
