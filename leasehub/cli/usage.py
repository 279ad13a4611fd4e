"""What --help says."""

LINES = {
    "lease acquire": "--kind K --ttl MINUTES [--owner O] [--payload JSON] [--wait-ms N]",
    "lease heartbeat": "--kind K --token N [--owner O]",
    "lease release": "--kind K (--token N [--owner O] | --force [--reason TEXT])",
    "lease status": "--kind K | --resource TYPE/ID",
    "lease reap": "--kind K",
    "lease list": "",
    "lease reconcile": "",
    "task put": "--queue Q [--payload JSON] [--priority N] [--delay-seconds N] [--max-attempts N] [--dedupe-key TEXT]",
    "task claim": "--queue Q [--holder H] [--ttl-seconds N] [--wait-seconds N] [--count N]",
    "task heartbeat": "--task ID --token N [--ttl-seconds N]",
    "task complete": "--task ID --token N [--result JSON]",
    "task fail": "--task ID --token N --error TEXT [--retry-in-seconds N] [--final]",
    "task return": "--task ID --token N",
    "task show": "--task ID",
    "task retry": "--task ID",
    "queue status": "[--queue Q]",
    "pool acquire": "--pool P [--owner O] [--session S] [--ttl MINUTES] [--wait-ms N | --no-wait] [--poll-ms N] "
    "[--selector JSON] [--count N] [--shell]",
    "pool request": "--pool P [--owner O] [--session S] [--ttl MINUTES] [--poll-ms N] [--selector JSON] [--count N]",
    "pool claim": "--pool P --request ID [--owner O] [--shell]",
    "pool cancel": "--pool P --request ID",
    "pool heartbeat": "--pool P --slot ID --token N [--owner O]",
    "pool release": "--pool P --slot ID (--token N [--owner O] | --force [--reason TEXT])",
    "pool reset": "--pool P --slot ID --token N [--owner O]",
    "pool reprovision": "--pool P --slot ID [--owner O] [--ttl MINUTES]",
    "pool health": "--pool P --slot ID",
    "pool status": "--pool P",
    "pool pump": "--pool P [--owner O]",
    "pool apply": "FILE",
    "pool drain": "--pool P --slot ID",
    "pool undrain": "--pool P --slot ID",
    "pool repair": "--pool P --slot ID",
    "handoff send": "--to PRINCIPAL --subject ID [--message TEXT] [--next-action TEXT] [--lease-ids ID,…] "
    "[--resource TYPE/ID] [--kind K] [--context ID] [--checkpoint ID] [--parent ID] [--accept-by TIME] "
    "[--done JSON] [--decisions JSON] [--failed-approaches JSON] [--blockers JSON] [--artifacts JSON] [--state JSON]",
    "handoff inbox": "[--sent] [--status S] [--limit N] [--after CURSOR]",
    "handoff show": "--handoff ID",
    "handoff accept": "--handoff ID [--holder H] [--ttl-seconds N] [--observed-commit C] [--reason TEXT]",
    "handoff reject": "--handoff ID --reason TEXT",
    "handoff withdraw": "--handoff ID [--reason TEXT]",
    "handoff complete": "--handoff ID [--result JSON]",
    "checkpoint save": "--subject ID --kind K --state (JSON | -) [--expected-version (N | any)] [--ttl-seconds N] "
    "[--run-id ID] [--fence TYPE/ID --token N]",
    "checkpoint get": "(--subject ID --kind K | --checkpoint ID) [--version N]",
    "events list": "[--after CURSOR] [--limit N] [--type TYPE,…] [--resource TYPE/ID] [--holder HOLDER] [--follow]",
    "events tail": "[--follow] [--after CURSOR] [--type TYPE,…] [--resource TYPE/ID] [--holder HOLDER]",
    "webhook create": "--url URL [--types TYPE,…] [--description TEXT]",
    "webhook list": "",
    "webhook show": "--webhook ID",
    "webhook delete": "--webhook ID",
    "webhook pause": "--webhook ID",
    "webhook resume": "--webhook ID",
    "webhook rotate": "--webhook ID [--overlap-seconds N]",
    "webhook test": "--webhook ID [--wait-seconds N]",
    "webhook deliveries": "--webhook ID [--limit N] [--after CURSOR]",
    "webhook replay": "--webhook ID (--delivery ID | --after POSITION [--before POSITION])",
    "explain": "(--resource TYPE/ID | --request ID)",
    "key create": "--principal HANDLE [--kind agent|service|human] [--label TEXT] [--rings 1,2,3] "
    "[--holder-pattern REGEX] [--expires-at TIME]",
    "key list": "",
    "key revoke": "KEY_ID",
    "key rotate": "KEY_ID [--overlap-seconds N]",
    "org create": "NAME",
    "whoami": "",
    "doctor": "",
    "version": "",
    "run": "(--resource TYPE/ID [--ttl-seconds N] [--holder H] [--purpose TEXT] [--wait-seconds N] | "
    "--pool P [--owner O] [--ttl MINUTES] [--heartbeat-secs N] [--wait-ms N | --no-wait]) -- COMMAND",
    "work": "--queue Q [--concurrency N] [--ttl-seconds N] [--holder H] [--until-empty] [--wait-seconds N] -- COMMAND",
    "mcp-stdio": "[--holder H]",
    "up": "[--data DIR] [--host ADDRESS] [--port N]",
    "worker": "[--queues A,B] [--threads N] [--no-beat]",
    "hook pre-tool-use": "[--fail open|closed] [--agent claude|codex|cursor]",
    "hook session-start": "[--fail open|closed] [--agent claude|codex|cursor]",
    "hook session-end": "[--fail open|closed] [--agent claude|codex|cursor]",
    "hook doctor": "",
    "setup": "claude|codex|cursor [--write] [--url URL] [--transport http|stdio] [--fail open|closed]",
}

NOTES = {
    "lease": """\
Every lease verb takes --pretty and --owner-pattern REGEX (or LEASE_OWNER_PATTERN; anchored, Python syntax).
The owner is --owner, else LEASE_OWNER, else the key's principal. A kind K is the resource (kind, K).
--ttl is minutes, fractions allowed; a token is the number that acquire answered.""",
    "task": """\
A claim is a lease on the task: its token is the number that claim answered. Without a heartbeat until its time
is up the task returns to its queue. `fail` has it tried again after a while, until its attempts are used up or
with --final not at all; `return` gives it back unfinished; `retry` revives a dead one, and is an operator's.""",
    "work": """\
Claims the tasks of a queue and runs COMMAND for each, with the payload as JSON on stdin and the claim in
LEASEHUB_TASK_ID, LEASEHUB_FENCING_TOKEN, LEASEHUB_LEASE_ID, LEASEHUB_ATTEMPT, LEASEHUB_QUEUE, LEASEHUB_HOLDER
and LEASEHUB_URL, beating from the background. Exit 0 completes the task: COMMAND's stdout is its result, as JSON
when it is JSON, else as text, up to 64 KiB. Any other ending fails it, with the end of stderr as the error.
A lost claim stops COMMAND. A signal is passed on, tasks that were being worked on are given back, and what is
left of COMMAND after ten seconds, or at a second signal, is killed.
--until-empty ends when nothing in the queue is ready, delayed or claimed by anybody (the key needs RING-1);
--wait-seconds N ends when there has been nothing to claim for so long. Otherwise it works until a signal.
At the end stdout says {"ok":true,"code":"stopped"|"empty","completed":n,"failed":n,"returned":n,"lost":n}.""",
    "pool": """\
P is a pool's name, or a pool file whose "name" is meant; LEASE_POOL_FILE stands in for it.
Every pool verb takes --pretty and --owner-pattern REGEX (or LEASE_OWNER_PATTERN). The owner is --owner, else
LEASE_OWNER, else the key's principal. --ttl is minutes (else POOL_TTL_MINUTES, else the pool's); acquire waits for
ever unless told otherwise, looks every --poll-ms (else POOL_POLL_MS, 5000), and leaves the queue on a signal.
A request is kept alive by `claim`: one that nobody asks for is dropped. With --shell a grant is printed as
export lines, and a failure on stderr alone. Applying, reprovision, health, drain, undrain and repair are an
operator's.""",
    "handoff": """\
Offers unfinished work, with its leases, to another principal. The leases are named by --lease-ids (a task's id
will do), by the --resource or the --kind that they are on. They stay the giver's until the offer is accepted;
`accept` answers them with their new ids and tokens, and which were lost.""",
    "checkpoint": """\
Saves the next version of a subject's state: --expected-version is the one that is there now, 0 (also when left
out) for none, any for whichever. `--state -` reads it from stdin. With --fence the write is refused unless the token
is the resource's current one.""",
    "events": """\
`list` answers a page, from the beginning or --after a cursor. `tail`, and `list --follow`, print one event a line and
go on until a signal: `tail` from now on, both --after a cursor. An event's position is a cursor too. They outlive a
server that is away, and print nothing twice.""",
    "webhook": """\
`create` has events posted to a URL from now on, all or those of the types, and shows the secret that signs them this
once; `rotate` makes another one, and both are valid for a day or the overlap. `test` sends one message and waits for
how it went: exit 0 when the receiver took it. `deliveries` is the log, newest first; `replay` sends one again, or the
events after one position of the feed and before another. All of it is an operator's.""",
    "run": """\
Runs COMMAND while holding a lease, or a slot of a pool, that it beats from the background. Stops COMMAND and
all its descendants when the lease is lost, or when the server has been away until the lease's own deadline;
what COMMAND leaves running is stopped before the lease is released. COMMAND sees LEASEHUB_FENCING_TOKEN,
LEASEHUB_LEASE_ID, LEASEHUB_RESOURCE_TYPE, LEASEHUB_RESOURCE_ID, LEASEHUB_HOLDER, LEASEHUB_EXPIRES_AT and
LEASEHUB_URL; with --pool also what the grant exports, and POOL_RUN_SLOT, POOL_RUN_TOKEN and POOL_RUN_OWNER.
Its stdin, stdout and stderr are passed through; stdout ends with a JSON object of leasehub's own only when
COMMAND did not run to its end (refused, usage, unreachable, cannot be started, interrupted, lease lost).
Exit: COMMAND's own status, 128+n after a signal n, 127 or 126 when it cannot be started, 75 when the lease
was lost, and 1, 2, 3 as below when it never ran.""",
    "explain": """\
Says why a resource is not to be had and how one's own last lease on it ended, or why a request to a pool waits: as JSON
on stdout, in sentences on stderr, as far as the key may see it.""",
    "mcp-stdio": """\
MCP over stdin and stdout, a JSON-RPC message a line, for hosts that can only start a process: each goes to the
server's /mcp with the key of the credentials, under a holder of this process alone (--holder, else LEASEHUB_HOLDER,
else principal:host:process). Ends when stdin does; a server that is away is told in band.""",
    "hook": """\
What coding agents call: the hook's JSON on stdin, the decision as JSON on stdout, exit 0 whatever happens, within
1.5 seconds. An edit of a path that .leasehub.json guards is denied unless the session holds the path's resource, or
the file has it acquire it. Without an answer of the server --fail open (the default) lets the edit through, closed
denies it; a flag that it does not know counts as closed. `doctor` proves with a made-up lease that the hook blocks.""",
    "setup": """\
Prints what connects an agent, or with --write merges it into the files here: the MCP server, and the hooks. The key
is in no file: it is read from LEASEHUB_TOKEN in the agent's environment (LEASEHUB_URL goes with it), or with
--transport stdio by leasehub itself.""",
    "up": """\
Starts the embedded server: SQLite, web server, worker and beat, everything under
DIR (--data, else LEASEHUB_DATA, else .leasehub).
With DATABASE_URL and CELERY_BROKER_URL set it uses those. LEASEHUB_WEB_WORKERS (1) and
LEASEHUB_WEB_THREADS (8) size the web server.""",
    "worker": """\
Becomes one more worker of the server, as python manage.py worker is: it serves the Celery queues A and B (else
"default"), and so runs the commands of the pools whose "worker" is one of them, N at a time (4); beat is in it unless
--no-beat. The server's database is DATABASE_URL's, else LEASEHUB_DATA's, else that of the .leasehub here or above. Logs
go to stderr, nothing to stdout; the exit status is the worker's own.""",
}

EXITS = """\
Exactly one JSON object goes to stdout, text for people to stderr.
Exit: 0 ok, 1 refused, 2 usage, 3 internal fault or server unreachable, 128 and the signal when one ended it."""


def line(verb: str) -> str:
    if verb in LINES:
        return f"usage: leasehub {verb} {LINES[verb]}".rstrip()
    return "usage: leasehub VERB [FLAGS]; leasehub --help lists the verbs"


def text(verb: str) -> str:
    chosen = [known for known in LINES if known == verb or known.startswith(f"{verb} ")] or list(LINES)
    notes = [note for group, note in NOTES.items() if any(known.split()[0] == group for known in chosen)]
    if len(chosen) == len(LINES):
        notes = []
    return "\n\n".join(["\n".join(line(known) for known in chosen), *notes, EXITS])
