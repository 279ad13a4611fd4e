"""What a command writes is kept within bounds, whatever the pipe brings at once."""

import os

from leasehub.cli.streams import Head, Tail


def written(stream, content):
    os.write(stream.writing, content)
    os.close(stream.writing)
    stream.drain()
    os.close(stream.descriptor)
    return stream


def test_of_a_head_the_beginning_is_kept():
    stream = written(Head(8), b"0123456789")
    assert (stream.kept, stream.is_cut) == (b"01234567", True)
    stream = written(Head(10), b"0123456789")
    assert (stream.kept, stream.is_cut) == (b"0123456789", False)


def test_of_a_tail_the_end_is_kept_and_all_of_it_passed_on(capfd):
    stream = written(Tail(8), b"0123456789")
    assert (stream.kept, stream.is_cut) == (b"23456789", True)
    assert capfd.readouterr().err == "0123456789"


def test_a_head_stays_within_its_bound_over_many_reads():
    stream = Head(8)
    for _ in range(3):
        os.write(stream.writing, b"01234")
        assert stream.read()
    # Nothing to read is not the end; the writer's going is.
    assert stream.read()
    os.close(stream.writing)
    assert not stream.read()
    os.close(stream.descriptor)
    assert stream.kept == b"01234012"


def test_what_is_no_utf_8_is_replaced():
    assert written(Head(8), b"a\xff").text() == "a\ufffd"
