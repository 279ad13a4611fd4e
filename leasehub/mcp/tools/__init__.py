"""The tools, each a few lines that call a service. Importing them registers them, in the order clients list them in."""

from leasehub.mcp.tools import leases, queues, pools, handoffs, people, news, explain  # noqa: F401, I001  isort: skip
