"""All settings, from environment variables. A wrong one stops the start with a sentence that names it."""

import ipaddress
import re
import secrets
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

env = environ.Env()

MAX_INTERVAL_SECONDS = 366 * 86400


def positive_int(name: str, default: int, *, at_most: int = MAX_INTERVAL_SECONDS) -> int:
    return whole_number(name, default, at_least=1, at_most=at_most)


def whole_number(name: str, default: int, *, at_least: int, at_most: int) -> int:
    text = env.str(name, default=str(default)).strip()
    if not (text.isascii() and text.isdigit() and at_least <= int(text[:18]) <= at_most):
        raise ImproperlyConfigured(f"{name} must be a whole number from {at_least} to {at_most}, not {text!r}.")
    return int(text)


def switch(name: str, default: str) -> bool:
    text: str = env.str(name, default=default).strip().lower()
    if text not in ("on", "off"):
        raise ImproperlyConfigured(f"{name} must be 'on' or 'off', not {text!r}.")
    return text == "on"


def words(name: str, default: list[str], *, form: str, example: str) -> list[str]:
    given: list[str] = env.list(name, default=default)
    for word in given:
        if not re.fullmatch(form, word):
            raise ImproperlyConfigured(f"{name} must be names like {example}, separated by commas, not {word!r}.")
    return given


def archive(name: str) -> str:
    text: str = env.str(name, default="").strip()
    if text and not Path(text).is_absolute():
        raise ImproperlyConfigured(f"{name} must be the absolute path of a folder, not {text!r}.")
    return text


def networks(name: str, default: list[str]) -> list[IPv4Network | IPv6Network]:
    given: list[str] = env.list(name, default=default)
    try:
        return [ip_network(text.strip()) for text in given]
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be networks like 10.0.0.0/8, separated by commas: {error}.") from None


def metrics_token() -> str:
    text: str = env.str("LEASEHUB_METRICS_TOKEN", default="").strip()
    if text and not (len(text) >= 16 and text.isascii() and text.isprintable() and " " not in text):
        raise ImproperlyConfigured("LEASEHUB_METRICS_TOKEN must have at least 16 ASCII characters, without spaces.")
    return text


def log_level() -> str:
    text: str = env.str("LEASEHUB_LOG_LEVEL", default="INFO").strip().upper()
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    if text not in levels:
        raise ImproperlyConfigured(f"LEASEHUB_LOG_LEVEL must be one of {', '.join(levels)}, not {text!r}.")
    return text


def hosts_and_networks(name: str) -> tuple[frozenset[str], tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]]:
    hosts, networks = set(), []
    for word in words(name, [], form=r"[\w.:-]+(/\d{1,3})?", example="hooks.internal or 10.20.0.0/16"):
        try:
            networks.append(ipaddress.ip_network(word))
        except ValueError:
            # What a resolver would read as a number is not taken for a name.
            if "/" in word or ":" in word or not re.search("[A-Za-z]", word):
                raise ImproperlyConfigured(f"{name}: {word!r} is neither a host nor a network.") from None
            hosts.add(word.lower().rstrip("."))
    return frozenset(hosts), tuple(networks)


def broker() -> str:
    url: str = env.str("CELERY_BROKER_URL", default="") or "memory://localhost"
    # Not the file system transport: it loses messages.
    if not re.match(r"(memory|redis|rediss|amqp|amqps|sentinel)://", url):
        raise ImproperlyConfigured("CELERY_BROKER_URL must name a redis:// or amqp:// broker.")
    return url


def private_folder(name: str, folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(f"{name}: {folder} cannot be made: {error.strerror}.") from None
    return folder


def secret_key(data: Path, *, embedded: bool) -> str:
    """The secret that signs sessions and encrypts stored secrets.

    The embedded server makes one and keeps it beside its database; a fleet must be told, because
    every process has to have the same.
    """
    given: str = env.str("LEASEHUB_SECRET_KEY", default="")
    if given:
        if len(given) < 32:
            raise ImproperlyConfigured("LEASEHUB_SECRET_KEY must have at least 32 characters.")
        return given
    # `leasehub up` names its folder; a process that was not told of one cannot know the fleet's secret.
    if not embedded and not env.str("LEASEHUB_DATA", default=""):
        raise ImproperlyConfigured(
            "LEASEHUB_SECRET_KEY must be set when DATABASE_URL is: every process needs the same secret."
        )
    file = data / "secret_key"
    if not file.exists():
        private_folder("LEASEHUB_DATA", data)
        # Written aside and linked into place: two first starts agree on whichever came first.
        aside = file.with_name(f"secret_key.{secrets.token_hex(8)}")
        aside.touch(mode=0o600)
        aside.write_text(secrets.token_urlsafe(48))
        try:
            file.hardlink_to(aside)
        except FileExistsError:
            pass
        finally:
            aside.unlink()
    return file.read_text().strip()


# The folder of the embedded server: database, secret key, credentials.
LEASEHUB_DATA = Path(env.str("LEASEHUB_DATA", default=".leasehub")).resolve()

LEASEHUB_MIN_TTL_SECONDS = positive_int("LEASEHUB_MIN_TTL_SECONDS", 10)
LEASEHUB_MAX_TTL_SECONDS = positive_int("LEASEHUB_MAX_TTL_SECONDS", 86400)
LEASEHUB_REAPER_SECONDS = positive_int("LEASEHUB_REAPER_SECONDS", 5)
# How long a remembered Idempotency-Key can be repeated.
LEASEHUB_IDEMPOTENCY_HOURS = positive_int("LEASEHUB_IDEMPOTENCY_HOURS", 24, at_most=24 * 366)
# Older events move out of the journal: to this folder as NDJSON, or for good.
LEASEHUB_EVENT_DAYS = positive_int("LEASEHUB_EVENT_DAYS", 90, at_most=36_600)
LEASEHUB_EVENT_ARCHIVE = archive("LEASEHUB_EVENT_ARCHIVE")
# Whether pools may declare commands: they are code that the workers run.
LEASEHUB_COMMANDS = switch("LEASEHUB_COMMANDS", "on")
LEASEHUB_PREPARED_STATEMENTS = switch("LEASEHUB_PREPARED_STATEMENTS", "on")
# Hosts and networks that webhooks may go to although they are not public, and without TLS.
LEASEHUB_WEBHOOK_ALLOW = hosts_and_networks("LEASEHUB_WEBHOOK_ALLOW")
# How long a webhook's delivery stays in its log once it is over.
LEASEHUB_DELIVERY_DAYS = positive_int("LEASEHUB_DELIVERY_DAYS", 30, at_most=3660)
# How many calls of a process may wait (wait_seconds) at a time; the others are answered at once.
LEASEHUB_WEB_THREADS = positive_int("LEASEHUB_WEB_THREADS", 8, at_most=512)
LEASEHUB_WAITING_CALLS = positive_int("LEASEHUB_WAITING_CALLS", 4, at_most=10_000)
# How many streams of events a process may have at a time; each has a thread of its own, beside those above.
LEASEHUB_STREAMS = positive_int("LEASEHUB_STREAMS", 250, at_most=10_000)
# A client that takes nothing of its answer for so long is hung up on.
LEASEHUB_UNREAD_SECONDS = positive_int("LEASEHUB_UNREAD_SECONDS", 30, at_most=86_400)
LEASEHUB_LOCK_TIMEOUT_MS = positive_int("LEASEHUB_LOCK_TIMEOUT_MS", 2000, at_most=600_000)
LEASEHUB_STATEMENT_TIMEOUT_MS = positive_int("LEASEHUB_STATEMENT_TIMEOUT_MS", 5000, at_most=3_600_000)
# Who may read /metrics, whose labels are tenants' names: these networks, or whoever has the token.
LEASEHUB_METRICS_ALLOW = networks("LEASEHUB_METRICS_ALLOW", ["127.0.0.0/8", "::1/128"])
LEASEHUB_METRICS_TOKEN = metrics_token()

if LEASEHUB_MIN_TTL_SECONDS > LEASEHUB_MAX_TTL_SECONDS:
    raise ImproperlyConfigured("LEASEHUB_MIN_TTL_SECONDS must not be above LEASEHUB_MAX_TTL_SECONDS.")

DEBUG = False
# Host names matter to the pages alone (links, CSRF); the API answers under any name that reaches it.
ALLOWED_HOSTS = words("LEASEHUB_ALLOWED_HOSTS", ["*"], form=r"\*|\.?[\w.:\[\]-]+", example="hub.example.org")
CSRF_TRUSTED_ORIGINS = words(
    "LEASEHUB_TRUSTED_ORIGINS", [], form=r"https?://[\w.:\[\]*-]+", example="https://hub.example.org"
)
# How many proxies in front append to X-Forwarded-For. What stands there before their entries anybody may have written.
LEASEHUB_PROXIES = whole_number("LEASEHUB_PROXIES", 0, at_least=0, at_most=10)


def databases() -> dict[str, dict[str, object]]:
    url = env.str("DATABASE_URL", default="")
    if not url:
        return {"default": sqlite(LEASEHUB_DATA / "leasehub.sqlite3")}
    try:
        parsed = env.db("DATABASE_URL")
    except (ImproperlyConfigured, ValueError) as error:
        raise ImproperlyConfigured(f"DATABASE_URL cannot be read: {error}") from None
    engine = parsed.get("ENGINE", "")
    if "sqlite" in engine:
        return {"default": sqlite(Path(parsed["NAME"]))}
    if "postgresql" not in engine:
        raise ImproperlyConfigured("DATABASE_URL must name a postgresql:// or sqlite:// database.")
    parsed["CONN_MAX_AGE"] = None
    # No ping before each request: the hot path finds a broken connection by using it (leasehub.db.retry).
    parsed["CONN_HEALTH_CHECKS"] = False
    parsed.setdefault("OPTIONS", {})
    # Prepared is what asks for it, the calls of the hot path: nothing is ever sent so often that it is by itself.
    # Behind a pooler that hands every transaction another connection there must be none (Django's own default).
    parsed["OPTIONS"]["prepare_threshold"] = 2**31 if LEASEHUB_PREPARED_STATEMENTS else None
    # A caller that waits for a lock longer than this gets a 503 that says when to come back.
    parsed["OPTIONS"]["options"] = (
        f"-c lock_timeout={LEASEHUB_LOCK_TIMEOUT_MS} -c statement_timeout={LEASEHUB_STATEMENT_TIMEOUT_MS} "
        "-c idle_in_transaction_session_timeout=10000"
    )
    return {"default": parsed}


def sqlite(file: Path) -> dict[str, object]:
    private_folder("LEASEHUB_DATA", file.parent)
    return {
        "ENGINE": "leasehub.db.sqlite",
        "NAME": file,
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            # DEFERRED transactions fail at once when they turn from reading to writing.
            "transaction_mode": "IMMEDIATE",
            # Of writers other than LeaseHub's own, which queue at the writer lock.
            "timeout": LEASEHUB_LOCK_TIMEOUT_MS / 1000,
            # FULL: a lease that was given out must survive a power cut.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON",
        },
        # A file, because the tests open it from several threads and processes.
        "TEST": {"NAME": file.with_name(f"test_{file.name}")},
    }


EMBEDDED = not env.str("DATABASE_URL", default="")
DATABASES = databases()
SECRET_KEY = secret_key(LEASEHUB_DATA, embedded=EMBEDDED)

INSTALLED_APPS = [
    # Without looking for admin modules at once: only a process that serves pages loads them (leasehub.urls).
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "leasehub",
    "leasehub.identity",
    "leasehub.events",
    "leases",
    "handoffs",
    "leasehub.dashboard",
    "leasehub.mcp",
    "django_htmx",
    "pools",
]

MIDDLEWARE = [
    "leasehub.api.middleware.request_id",
    "leasehub.api.middleware.content_security_policy",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
# What a request to /v1 passes through: no session, no cookie, no CSRF, since the API knows only bearer keys.
API_MIDDLEWARE = ["leasehub.api.middleware.request_id"]

ROOT_URLCONF = "leasehub.urls"
WSGI_APPLICATION = "leasehub.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [Path(__file__).resolve().parent.parent / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "leasehub.dashboard.context.page",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
FORMAT_MODULE_PATH = ["leasehub.formats"]
# The body limit of the API is its own (1 MiB, leasehub.api.parsing); Django's guards the pages' forms.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
APPEND_SLASH = True

LOGIN_URL = "sign_in"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "sign_in"

STATIC_URL = "/static/"
# Files are served from the installed packages: nothing to collect before the first start.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = switch("LEASEHUB_HTTPS", "off")
if switch("LEASEHUB_HTTPS", "off"):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_HSTS_SECONDS = 31_536_000

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "leasehub.api.schema.Schema",
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "leasehub.api.failures.AnyAccept",
    "EXCEPTION_HANDLER": "leasehub.api.failures.of_rest_framework",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "LeaseHub",
    "DESCRIPTION": "Expiring leases with fencing tokens, queues, pools and handoffs.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # Several members are called status: each set of its values has a name of its own.
    "ENUM_NAME_OVERRIDES": {
        "HandoffStatus": ["pending", "accepted", "rejected", "withdrawn", "expired", "completed"],
        "HandoffDecision": ["accepted", "rejected"],
        "ClaimState": ["held", "unknown"],
        "ResourceState": ["free", "held", "unknown"],
        "WebhookState": ["active", "paused", "disabled"],
        "DeliveryState": ["pending", "delivered", "failed"],
        "CheckStatus": ["ok", "warn", "fail"],
        "TaskState": ["ready", "leased", "done", "dead"],
    },
    "AUTHENTICATION_WHITELIST": [],
    "APPEND_COMPONENTS": {"securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "bearerFormat": "lh_…"}}},
    "SECURITY": [{"apiKey": []}],
}

CELERY_BROKER_URL = broker()
CELERY_TASK_IGNORE_RESULT = True
# Without a result backend there is nothing to clean up: beat would add a task of its own for it.
CELERY_RESULT_EXPIRES = None
# A message carries no state (every task scans rows), so what matters is that none is hoarded.
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_BEAT_SCHEDULER = "leasehub.beat:Scheduler"
CELERY_TIMEZONE = "UTC"
DJANGO_CELERY_BEAT_TZ_AWARE = True
if CELERY_BROKER_URL.startswith("memory"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {"polling_interval": 0.1}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "secrets": {"()": "leasehub.api.logs.RedactSecrets"},
        "request": {"()": "leasehub.api.logs.RequestId"},
    },
    "formatters": {
        "text": {"format": "{asctime} {levelname} {name} [{request_id}] {message}", "style": "{"},
        "json": {"()": "leasehub.api.logs.JsonFormatter"},
    },
    "handlers": {
        "stderr": {
            "class": "logging.StreamHandler",
            "filters": ["request", "secrets"],
            "formatter": "json" if switch("LEASEHUB_JSON_LOGS", "off") else "text",
        }
    },
    "root": {"handlers": ["stderr"], "level": log_level()},
    "loggers": {
        # One line a refused request would drown everything else.
        "django.request": {"level": "ERROR"},
        # One line a tool call, likewise.
        "django_mcpz.calls": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
        "django_celery_beat": {"level": "WARNING"},
        "celery.beat": {"level": "WARNING"},
    },
}
