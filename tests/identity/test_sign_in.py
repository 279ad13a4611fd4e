"""Too many wrong passwords: the next one has to wait, at the pages and at the admin alike."""

import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, RequestFactory

from leasehub.identity import sign_in
from leasehub.identity.models import SignInAttempts

PASSWORD = "correct-horse-battery"
DOORS = ("/sign-in", "/admin/login/")


@pytest.fixture(autouse=True)
def cheap_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def root(db: None) -> User:
    return User.objects.create_superuser("root", password=PASSWORD)


def attempt(password: str = "wrong", *, name: str = "root", door: str = "/sign-in", **environ: str) -> Any:
    return Client().post(door, {"username": name, "password": password}, **environ)


def is_signed_in(response: Any) -> bool:
    return bool(response.status_code == 302)


def has_to_wait(response: Any) -> bool:
    return b"Come back in" in response.content


@pytest.mark.parametrize("door", DOORS)
def test_the_sixth_waits_even_with_the_right_password_and_then_gets_in(door: str, root: User, clock: Any) -> None:
    for _ in range(sign_in.ACCOUNT_TRIES):
        assert not has_to_wait(attempt(door=door))
    refused = attempt(PASSWORD, door=door)
    assert has_to_wait(refused)
    assert b"Come back in 29 s" in refused.content or b"Come back in 30 s" in refused.content
    clock.move(seconds=31)
    assert is_signed_in(attempt(PASSWORD, door=door))
    for _ in range(sign_in.ACCOUNT_TRIES):
        assert not has_to_wait(attempt(door=door))


def test_the_two_doors_count_together(root: User) -> None:
    for number in range(sign_in.ACCOUNT_TRIES):
        attempt(door=DOORS[number % 2])
    assert all(has_to_wait(attempt(PASSWORD, door=door)) for door in DOORS)


def test_the_page_says_when_to_come_back_in_its_headers_too(root: User) -> None:
    for _ in range(sign_in.ACCOUNT_TRIES):
        assert attempt().status_code == 200
    refused = attempt()
    assert refused.status_code == 429
    assert 25 <= int(refused.headers["Retry-After"]) <= 30


def test_each_wrong_one_after_a_wait_makes_the_next_wait_longer(root: User, clock: Any) -> None:
    clock.freeze(clock.now())
    for _ in range(sign_in.ACCOUNT_TRIES):
        attempt()
    waits = []
    for _ in range(7):
        wait = int(attempt().headers["Retry-After"])
        waits.append(wait)
        # What is refused while it waits does not make it longer.
        assert int(attempt().headers["Retry-After"]) == wait
        clock.freeze(clock.now() + sign_in.timedelta(seconds=wait))
        assert attempt().status_code == 200
    assert waits == [30, 60, 120, 240, 480, 900, 900]


def test_others_are_not_locked_out(root: User, clock: Any) -> None:
    User.objects.create_user("mara", password=PASSWORD)
    for _ in range(sign_in.ACCOUNT_TRIES + 1):
        attempt(REMOTE_ADDR="203.0.113.7")
    assert has_to_wait(attempt(PASSWORD, REMOTE_ADDR="203.0.113.7"))
    assert is_signed_in(attempt(PASSWORD, REMOTE_ADDR="203.0.113.8"))
    assert is_signed_in(attempt(PASSWORD, name="mara", REMOTE_ADDR="203.0.113.7"))


def test_an_address_that_tries_many_accounts_waits_with_all_of_them(root: User, clock: Any) -> None:
    for number in range(sign_in.ADDRESS_TRIES):
        assert not has_to_wait(attempt(name=f"nobody-{number}", REMOTE_ADDR="203.0.113.7"))
    assert has_to_wait(attempt(PASSWORD, REMOTE_ADDR="203.0.113.7"))
    assert is_signed_in(attempt(PASSWORD, REMOTE_ADDR="203.0.113.8"))
    clock.move(seconds=31)
    assert is_signed_in(attempt(PASSWORD, REMOTE_ADDR="203.0.113.7"))
    # One that got in is no attempt of the address; the next wrong one waits as long as it would have.
    assert not has_to_wait(attempt(name="somebody", REMOTE_ADDR="203.0.113.7"))
    assert has_to_wait(attempt(name="somebody-else", REMOTE_ADDR="203.0.113.7"))


def test_signing_in_often_is_no_wrong_password(root: User) -> None:
    for _ in range(sign_in.ADDRESS_TRIES + 3):
        assert is_signed_in(attempt(PASSWORD))


def test_an_account_that_is_not_there_waits_like_one_that_is(root: User) -> None:
    answers = []
    for name in ("root", "nobody"):
        answers.append([attempt(name=name).status_code for _ in range(sign_in.ACCOUNT_TRIES + 2)])
    assert answers[0] == answers[1]


def test_an_account_is_one_however_its_name_is_written(root: User) -> None:
    for name in ("root", "ROOT", "Root", "ｒｏｏｔ", "rOOt"):
        attempt(name=name)
    assert has_to_wait(attempt(PASSWORD))


def test_after_an_hour_it_is_forgotten(root: User, clock: Any) -> None:
    for _ in range(sign_in.ACCOUNT_TRIES):
        attempt()
    assert sign_in.forget() == 0
    clock.move(seconds=3601)
    assert not has_to_wait(attempt())
    for _ in range(sign_in.ACCOUNT_TRIES - 1):
        assert not has_to_wait(attempt())
    assert has_to_wait(attempt())
    clock.move(seconds=3601)
    assert sign_in.forget() == 2
    assert not SignInAttempts.objects.exists()


def test_a_header_that_anybody_can_write_moves_nobody(root: User, settings: Any) -> None:
    for number in range(sign_in.ACCOUNT_TRIES):
        attempt(HTTP_X_FORWARDED_FOR=f"198.51.100.{number}", REMOTE_ADDR="203.0.113.7")
    assert has_to_wait(attempt(PASSWORD, HTTP_X_FORWARDED_FOR="198.51.100.99", REMOTE_ADDR="203.0.113.7"))


def test_behind_a_proxy_the_entry_that_it_wrote_counts(root: User, settings: Any) -> None:
    settings.LEASEHUB_PROXIES = 1
    for number in range(sign_in.ACCOUNT_TRIES):
        attempt(HTTP_X_FORWARDED_FOR=f"198.51.100.{number}, 192.0.2.1", REMOTE_ADDR="10.0.0.1")
    assert has_to_wait(attempt(PASSWORD, HTTP_X_FORWARDED_FOR="192.0.2.1", REMOTE_ADDR="10.0.0.1"))
    assert is_signed_in(attempt(PASSWORD, HTTP_X_FORWARDED_FOR="192.0.2.1, 192.0.2.2", REMOTE_ADDR="10.0.0.1"))


@pytest.mark.parametrize(
    ("proxies", "remote", "forwarded", "address"),
    [
        (0, "203.0.113.7", "198.51.100.1", "203.0.113.7"),
        (0, "", "", ""),
        (0, "2001:db8:1:2:aaaa::1", "", "2001:db8:1:2::/64"),
        (0, "2001:db8:1:2:bbbb::1", "", "2001:db8:1:2::/64"),
        (0, "::ffff:203.0.113.7", "", "203.0.113.7"),
        (1, "10.0.0.1", "198.51.100.1", "198.51.100.1"),
        (1, "10.0.0.1", "evil, 198.51.100.1", "198.51.100.1"),
        (2, "10.0.0.1", "evil, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        (2, "10.0.0.1", "198.51.100.1", "10.0.0.1"),
        (1, "10.0.0.1", "", "10.0.0.1"),
        (1, "10.0.0.1", "x" * 500, "x" * 64),
    ],
)
def test_the_address_is_as_far_as_it_is_believed(
    proxies: int, remote: str, forwarded: str, address: str, settings: Any
) -> None:
    settings.LEASEHUB_PROXIES = proxies
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    request = RequestFactory().post("/sign-in", **{"REMOTE_ADDR": remote, **headers})
    assert sign_in.address_of(request) == address


@pytest.mark.django_db(transaction=True)
def test_many_at_once_get_no_more_tries_than_one_after_another() -> None:
    barrier = threading.Barrier(12)
    looked_at: list[str] = []

    def guess() -> None:
        barrier.wait()
        try:
            sign_in.begin(name="root", address="203.0.113.7")
            looked_at.append("guess")
        except sign_in.Locked:
            pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=guess) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looked_at) == sign_in.ACCOUNT_TRIES


@pytest.mark.django_db(transaction=True)
def test_the_sweep_takes_no_row_away_that_an_attempt_has_found(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in.begin(name="root", address="203.0.113.7")
    clock.move(hours=2)
    locked, sweeping = sign_in._locked, threading.Event()

    def sweep() -> None:
        sweeping.set()
        sign_in.forget()
        connections.close_all()

    sweeper = threading.Thread(target=sweep)

    def late(*subjects: str) -> Any:
        sweeper.start()
        sweeping.wait()
        # Time enough for a sweep that is not kept out; one that is waits for the attempt to end.
        sweeper.join(0.3)
        return locked(*subjects)

    monkeypatch.setattr(sign_in, "_locked", late)
    sign_in.begin(name="root", address="203.0.113.7")
    sweeper.join()
    assert set(SignInAttempts.objects.values_list("attempts", flat=True)) == {1}
