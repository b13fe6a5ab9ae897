"""The one door to private torch: every name of torch that carries an underscore, and every private attribute of
its objects, is reached through a module of this package and is listed in one table.

A module has one subject and declares its names as :class:`~cftdiag.torch_private.names.Name`: where each is,
what it serves, what is lost without it. ``from cftdiag.torch_private.dynamo import reset`` looks the name up
when it is asked for, so importing a module of this package imports no torch.
:mod:`~cftdiag.torch_private.table` gathers the names of all modules and tests each one against the torch that
is installed; ``cftdiag doctor`` prints what it finds.
"""
