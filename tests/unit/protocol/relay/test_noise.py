"""The encrypted channel: both halves together, and attacks on every part of what goes between them.

Whatever is changed, sent again, left out, or comes from elsewhere ends in `NoiseError`, and a half that has
met it does nothing any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from execprotocol.relay.keys import KeyPair, PublicKeys, encapsulate
from execprotocol.relay.noise import (
    MAX_AUTHORIZATION_BYTES,
    MAX_RECORD_BYTES,
    MAX_RECORDS,
    MESSAGE_1_BYTES,
    MESSAGE_2_BYTES,
    REJECTION,
    TAG_BYTES,
    Binding,
    Initiator,
    NoiseError,
    NoiseTransport,
    Responder,
)

HARNESS, EXECUTOR, STRANGER = (KeyPair.from_seed(bytes([number]) * 96) for number in (1, 2, 3))
BINDING = Binding("environment", "registration", "stream")
AUTHORIZATION = b"authorization"


def initiator(binding: Binding = BINDING, own: KeyPair = HARNESS, executor: KeyPair = EXECUTOR) -> Initiator:
    return Initiator(own, executor.public, binding)


def responder(binding: Binding = BINDING, own: KeyPair = EXECUTOR) -> Responder:
    return Responder(own, binding)


def shaken(
    authorization: bytes = AUTHORIZATION, payload: bytes = b""
) -> tuple[NoiseTransport, NoiseTransport]:
    """The channel's two ends, the initiator's first."""
    ours, theirs = initiator(), responder()
    theirs.read_first(ours.write_first(authorization))
    message, down = theirs.write_second(payload)
    return ours.read_second(message)[1], down


def between(first: Callable[[], tuple[Initiator, Responder]] = lambda: (initiator(), responder())) -> bytes:
    """A second message."""
    ours, theirs = first()
    theirs.read_first(ours.write_first(AUTHORIZATION))
    return theirs.write_second()[0]


def regions(*sizes: tuple[str, int]) -> dict[str, tuple[int, int]]:
    """Names of a message's parts, with where each begins and ends."""
    places = pairwise(accumulate((size for _, size in sizes), initial=0))
    return {name: place for (name, _), place in zip(sizes, places, strict=True)}


FIRST = regions(
    ("ciphertext to the static key", 1088),
    ("ephemeral X25519 key", 32),
    ("ephemeral ML-KEM key", 1184),
    ("static X25519 key", 32),
    ("tag of the static X25519 key", 16),
    ("static ML-KEM key", 1184),
    ("tag of the static ML-KEM key", 16),
    ("authorization", len(AUTHORIZATION)),
    ("tag of the authorization", 16),
)
SECOND = regions(
    ("ciphertext to the ephemeral key", 1088),
    ("ciphertext to the static key", 1088),
    ("tag of the ciphertext to the static key", 16),
    ("ephemeral X25519 key", 32),
    ("ephemeral ML-KEM key", 1184),
    ("payload", len(REJECTION)),
    ("tag of the payload", 16),
)


def flipped(message: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(message)
    changed[place] ^= 1 << bit
    return bytes(changed)


def spots(begin: int, end: int) -> list[tuple[int, int]]:
    """Bits in the first, middle and last byte of a region."""
    return [(begin, 0), (begin, 7), ((begin + end) // 2, 3), (end - 1, 0), (end - 1, 7)]


# -- both halves together


def test_both_halves_agree_on_a_channel() -> None:
    ours, theirs = initiator(), responder()
    harness, authorization = theirs.read_first(ours.write_first(AUTHORIZATION))
    assert (harness, authorization) == (HARNESS.public, AUTHORIZATION)
    message, down = theirs.write_second()
    payload, up = ours.read_second(message)
    assert payload == b""
    for record in (b"", b"first", bytes(MAX_RECORD_BYTES)):
        sealed = up.seal(record)
        assert len(sealed) == len(record) + TAG_BYTES
        assert down.open(sealed) == record
        assert up.open(down.seal(record)) == record


def test_a_rejection_is_told_in_the_second_message() -> None:
    ours, theirs = initiator(), responder()
    theirs.read_first(ours.write_first(AUTHORIZATION))
    assert ours.read_second(theirs.write_second(REJECTION)[0])[0] == REJECTION


def test_messages_and_records_may_be_any_buffer() -> None:
    ours, theirs = initiator(), responder()
    theirs.read_first(memoryview(ours.write_first(AUTHORIZATION)))
    message, down = theirs.write_second()
    up = ours.read_second(bytearray(message))[1]
    assert down.open(memoryview(up.seal(memoryview(b"record")))) == b"record"
    assert down.open(bytearray(up.seal(bytearray(b"record")))) == b"record"


def test_messages_have_the_sizes_of_the_wire() -> None:
    assert (MESSAGE_1_BYTES, MESSAGE_2_BYTES) == (3568, 3424)
    ours, theirs = initiator(), responder()
    first = ours.write_first(AUTHORIZATION)
    theirs.read_first(first)
    second, _ = theirs.write_second(REJECTION)
    assert len(first) == 3568 + len(AUTHORIZATION) == max(end for _, end in FIRST.values())
    assert len(second) == 3424 + len(REJECTION) == max(end for _, end in SECOND.values())


def test_no_two_handshakes_are_alike() -> None:
    first, second = initiator().write_first(AUTHORIZATION), initiator().write_first(AUTHORIZATION)
    for begin, end in FIRST.values():
        assert first[begin:end] != second[begin:end]


def test_neither_keys_nor_authorization_are_to_be_seen_in_the_first_message() -> None:
    message = initiator().write_first(AUTHORIZATION)
    for secret in (HARNESS.public.x25519, HARNESS.public.mlkem768[:32], AUTHORIZATION):
        assert secret not in message


# -- the authorization's size


@pytest.mark.parametrize("size", [0, 1, MAX_AUTHORIZATION_BYTES])
def test_an_authorization_up_to_4096_bytes_arrives(size: int) -> None:
    assert MAX_AUTHORIZATION_BYTES == 4096
    assert responder().read_first(initiator().write_first(bytes(size)))[1] == bytes(size)


def test_a_longer_authorization_is_not_written() -> None:
    ours = initiator()
    with pytest.raises(NoiseError, match="4096"):
        ours.write_first(bytes(MAX_AUTHORIZATION_BYTES + 1))
    with pytest.raises(NoiseError):
        ours.write_first(b"short")


def test_a_longer_authorization_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("execprotocol.relay.noise.MAX_AUTHORIZATION_BYTES", MAX_AUTHORIZATION_BYTES + 1)
    message = initiator().write_first(bytes(MAX_AUTHORIZATION_BYTES + 1))
    monkeypatch.undo()
    with pytest.raises(NoiseError, match="size"):
        responder().read_first(message)


# -- a changed byte


@pytest.mark.parametrize("region", FIRST)
def test_a_bit_changed_anywhere_in_the_first_message_is_noticed(region: str) -> None:
    message = initiator().write_first(AUTHORIZATION)
    for place, bit in spots(*FIRST[region]):
        theirs = responder()
        with pytest.raises(NoiseError):
            theirs.read_first(flipped(message, place, bit))
        # Nothing was half accepted: neither the right message nor an answer gets through any more.
        with pytest.raises(NoiseError):
            theirs.read_first(message)
        with pytest.raises(NoiseError):
            theirs.write_second()
    assert responder().read_first(message) == (HARNESS.public, AUTHORIZATION)


@pytest.mark.parametrize("region", SECOND)
def test_a_bit_changed_anywhere_in_the_second_message_is_noticed(region: str) -> None:
    for place, bit in spots(*SECOND[region]):
        ours, theirs = initiator(), responder()
        theirs.read_first(ours.write_first(AUTHORIZATION))
        message = theirs.write_second(REJECTION)[0]
        with pytest.raises(NoiseError):
            ours.read_second(flipped(message, place, bit))
        with pytest.raises(NoiseError):
            ours.read_second(message)


@pytest.mark.parametrize("length", [0, 1, 1088, 2304, MESSAGE_1_BYTES - 1, MESSAGE_1_BYTES])
def test_a_first_message_that_is_cut_is_refused(length: int) -> None:
    message = initiator().write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        responder().read_first(message[:length])


@pytest.mark.parametrize("length", [0, 1, 1088, 2192, MESSAGE_2_BYTES - 1, MESSAGE_2_BYTES])
def test_a_second_message_that_is_cut_is_refused(length: int) -> None:
    ours, theirs = initiator(), responder()
    theirs.read_first(ours.write_first(AUTHORIZATION))
    message = theirs.write_second(REJECTION)[0]
    with pytest.raises(NoiseError):
        ours.read_second(message[:length])


def test_a_byte_more_is_refused() -> None:
    ours, theirs = initiator(), responder()
    message = ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        responder().read_first(message + b"\0")
    theirs.read_first(message)
    with pytest.raises(NoiseError):
        ours.read_second(theirs.write_second()[0] + b"\0")


sizes_around = st.sampled_from(
    [0, 1, MESSAGE_2_BYTES, MESSAGE_1_BYTES, MESSAGE_1_BYTES + MAX_AUTHORIZATION_BYTES]
)


@given(st.randoms(use_true_random=False), sizes_around, st.integers(0, 3))
@settings(max_examples=100)
def test_any_bytes_are_refused_in_our_words(chance: random.Random, size: int, more: int) -> None:
    message = chance.randbytes(size + more)
    with pytest.raises(NoiseError):
        responder().read_first(message)
    ours = initiator()
    ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        ours.read_second(message)


# -- another channel, another peer


OTHERS = {
    "environment": BINDING._replace(environment_id="environment2"),
    "registration": BINDING._replace(registration_id="registration2"),
    "stream": BINDING._replace(stream_id="stream2"),
    "border between environment and registration": Binding("environmentr", "egistration", "stream"),
    "border between registration and stream": Binding("environment", "registrations", "tream"),
    "order": Binding("registration", "environment", "stream"),
    "nothing in it": Binding("", "", ""),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_message_of_another_channel_is_refused(other: Binding) -> None:
    with pytest.raises(NoiseError):
        responder(other).read_first(initiator().write_first(AUTHORIZATION))


def test_a_message_for_another_executor_is_refused() -> None:
    with pytest.raises(NoiseError):
        responder(own=STRANGER).read_first(initiator().write_first(AUTHORIZATION))


@pytest.mark.parametrize("part", ["x25519", "mlkem768"])
def test_both_keys_of_the_executor_count(part: str) -> None:
    half_right = replace(EXECUTOR.public, **{part: getattr(STRANGER.public, part)})
    with pytest.raises(NoiseError):
        responder().read_first(Initiator(HARNESS, half_right, BINDING).write_first(AUTHORIZATION))


class Pretender(KeyPair):
    """Shows public keys of another peer, without the private ones."""

    shown: PublicKeys

    @property
    def public(self) -> PublicKeys:
        return self.shown


def pretender(own: KeyPair, shown: PublicKeys) -> KeyPair:
    made = Pretender.from_seed(own.seed)
    assert isinstance(made, Pretender)
    made.shown = shown
    return made


def test_who_has_only_the_x25519_key_that_it_shows_cannot_be_read() -> None:
    """Proof of the ML-KEM key comes with the second message, which needs it to be read."""
    shown = replace(STRANGER.public, mlkem768=HARNESS.public.mlkem768)
    ours, theirs = initiator(own=pretender(STRANGER, shown)), responder()
    assert theirs.read_first(ours.write_first(AUTHORIZATION))[0] == shown
    with pytest.raises(NoiseError):
        ours.read_second(theirs.write_second()[0])


def test_who_shows_anothers_x25519_key_is_refused() -> None:
    shown = replace(STRANGER.public, x25519=HARNESS.public.x25519)
    with pytest.raises(NoiseError):
        responder().read_first(initiator(own=pretender(STRANGER, shown)).write_first(AUTHORIZATION))


def test_an_answer_to_another_first_message_is_refused() -> None:
    ours = initiator()
    ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        ours.read_second(between())


def test_an_answer_of_a_stranger_is_refused() -> None:
    """It read a message that was meant for it, and answers one that was not."""
    ours = initiator()
    ours.write_first(AUTHORIZATION)
    stranger = responder(own=STRANGER)
    stranger.read_first(initiator(executor=STRANGER).write_first(AUTHORIZATION))
    with pytest.raises(NoiseError):
        ours.read_second(stranger.write_second()[0])


def test_the_own_message_sent_back_is_refused() -> None:
    ours = initiator()
    message = ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        ours.read_second(message)


def test_a_first_message_twice_makes_two_channels_that_share_nothing() -> None:
    """A replay is the registry's to refuse (its authorization is used up); it must not help to read."""
    ours, theirs, again = initiator(), responder(), responder()
    message = ours.write_first(AUTHORIZATION)
    theirs.read_first(message)
    again.read_first(message)
    up = ours.read_second(theirs.write_second()[0])[1]
    with pytest.raises(NoiseError):
        again.write_second()[1].open(up.seal(b"record"))


# -- keys that are none


LOW_ORDER = [bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"]


@pytest.mark.parametrize("point", LOW_ORDER)
def test_an_executor_key_without_a_secret_is_refused(point: bytes) -> None:
    broken = replace(EXECUTOR.public, x25519=point)
    with pytest.raises(NoiseError, match="executor"):
        Initiator(HARNESS, broken, BINDING).write_first(AUTHORIZATION)


@pytest.mark.parametrize(
    "broken",
    [
        replace(EXECUTOR.public, x25519=b"short"),
        replace(EXECUTOR.public, mlkem768=b"short"),
        replace(EXECUTOR.public, mlkem768=b"\xff" * 1184),
    ],
)
def test_an_executor_key_that_is_none_is_refused(broken: PublicKeys) -> None:
    with pytest.raises(NoiseError, match="executor"):
        Initiator(HARNESS, broken, BINDING).write_first(AUTHORIZATION)


class Forced(KeyPair):
    """Shows a key with which no secret can be shared, and takes any secret for its own."""

    shown: PublicKeys
    secret: bytes

    @property
    def public(self) -> PublicKeys:
        return self.shown

    def exchange(self, x25519: bytes) -> bytes:
        return self.secret


def forced(point: bytes) -> KeyPair:
    own = KeyPair.generate()
    made = Forced.from_seed(own.seed)
    assert isinstance(made, Forced)
    made.shown, made.secret = replace(own.public, x25519=point), bytes(32)
    return made


@pytest.mark.parametrize("point", LOW_ORDER)
def test_a_harness_whose_keys_force_a_known_secret_is_refused(point: bytes) -> None:
    """A point of low order makes an agreement of zeros, which both could know without any key."""
    for own, ephemeral in ((HARNESS, forced(point)), (forced(point), KeyPair.generate())):
        ours = Initiator(own, EXECUTOR.public, BINDING, ephemeral=ephemeral)
        with pytest.raises(NoiseError, match="an invalid key"):
            responder().read_first(ours.write_first(AUTHORIZATION))


@pytest.mark.parametrize("point", LOW_ORDER)
def test_an_executor_whose_ephemeral_key_forces_a_known_secret_is_refused(point: bytes) -> None:
    ours, theirs = initiator(), Responder(EXECUTOR, BINDING, ephemeral=forced(point))
    theirs.read_first(ours.write_first(AUTHORIZATION))
    with pytest.raises(NoiseError, match="an invalid key"):
        ours.read_second(theirs.write_second()[0])


@pytest.mark.parametrize("which", ["static", "ephemeral"])
def test_a_harness_whose_ml_kem_key_is_none_gets_no_answer(which: str) -> None:
    broken = PublicKeys(HARNESS.public.x25519, b"\xff" * 1184)
    own = pretender(HARNESS, broken) if which == "static" else HARNESS
    ephemeral = pretender(HARNESS, broken) if which == "ephemeral" else None
    ours, theirs = Initiator(own, EXECUTOR.public, BINDING, ephemeral=ephemeral), responder()
    theirs.read_first(ours.write_first(AUTHORIZATION))
    with pytest.raises(NoiseError, match="harness"):
        theirs.write_second()
    with pytest.raises(NoiseError, match="over"):
        theirs.write_second()


def test_a_secret_that_was_not_encapsulated_to_the_executor_is_refused() -> None:
    stranger = partial(encapsulate, STRANGER.public.mlkem768)
    ours = Initiator(HARNESS, EXECUTOR.public, BINDING, encapsulate=lambda _key: stranger())
    with pytest.raises(NoiseError):
        responder().read_first(ours.write_first(AUTHORIZATION))


# -- order


def test_an_initiator_reads_nothing_before_it_wrote() -> None:
    ours = initiator()
    with pytest.raises(NoiseError):
        ours.read_second(between())
    with pytest.raises(NoiseError):
        ours.write_first(AUTHORIZATION)


def test_an_initiator_writes_once() -> None:
    ours = initiator()
    ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        ours.write_first(AUTHORIZATION)


def test_a_second_message_is_read_once() -> None:
    ours, theirs = initiator(), responder()
    theirs.read_first(ours.write_first(AUTHORIZATION))
    message = theirs.write_second()[0]
    ours.read_second(message)
    with pytest.raises(NoiseError):
        ours.read_second(message)


def test_a_responder_writes_nothing_before_it_read() -> None:
    theirs = responder()
    with pytest.raises(NoiseError):
        theirs.write_second()
    with pytest.raises(NoiseError):
        theirs.read_first(initiator().write_first(AUTHORIZATION))


def test_a_responder_reads_once_and_writes_once() -> None:
    message = initiator().write_first(AUTHORIZATION)
    theirs = responder()
    theirs.read_first(message)
    with pytest.raises(NoiseError):
        theirs.read_first(message)
    theirs = responder()
    theirs.read_first(message)
    theirs.write_second()
    with pytest.raises(NoiseError):
        theirs.write_second()


@pytest.mark.parametrize("kind", ["a record", "a second message"])
def test_a_responder_takes_nothing_else_for_a_first_message(kind: str) -> None:
    message = shaken()[0].seal(bytes(MESSAGE_1_BYTES)) if kind == "a record" else between()
    with pytest.raises(NoiseError):
        responder().read_first(message)


def test_an_initiator_takes_no_record_for_a_second_message() -> None:
    ours = initiator()
    ours.write_first(AUTHORIZATION)
    with pytest.raises(NoiseError):
        ours.read_second(shaken()[1].seal(bytes(MESSAGE_2_BYTES - TAG_BYTES)))


# -- records


def dead(end: NoiseTransport, right: bytes) -> bool:
    """Whether an end opens nothing any more, not even what would have been right."""
    with pytest.raises(NoiseError):
        end.open(right)
    return True


@pytest.mark.parametrize("place", [0, 5, 6, 21])
def test_a_bit_changed_in_a_record_is_noticed(place: int) -> None:
    up, down = shaken()
    sealed = up.seal(b"record")
    with pytest.raises(NoiseError):
        down.open(flipped(sealed, place, 0))
    assert dead(down, sealed)


@pytest.mark.parametrize("length", [0, 1, TAG_BYTES - 1, TAG_BYTES, TAG_BYTES + 1])
def test_a_record_that_is_cut_is_refused(length: int) -> None:
    up, down = shaken()
    sealed = up.seal(b"record")
    with pytest.raises(NoiseError):
        down.open(sealed[:length])
    assert dead(down, sealed)


def test_a_record_that_comes_again_is_refused() -> None:
    up, down = shaken()
    first, second = up.seal(b"record"), up.seal(b"record")
    assert first != second
    down.open(first)
    with pytest.raises(NoiseError):
        down.open(first)
    assert dead(down, second)


def test_a_record_that_is_left_out_is_noticed() -> None:
    up, down = shaken()
    first, second = up.seal(b"one"), up.seal(b"two")
    with pytest.raises(NoiseError):
        down.open(second)
    assert dead(down, first)


def test_records_in_another_order_are_refused() -> None:
    up, down = shaken()
    first, second, third = (up.seal(record) for record in (b"one", b"two", b"three"))
    assert down.open(first) == b"one"
    with pytest.raises(NoiseError):
        down.open(third)
    assert dead(down, second)


def test_a_record_that_is_sent_back_is_refused() -> None:
    up, _ = shaken()
    sealed = up.seal(b"record")
    with pytest.raises(NoiseError):
        up.open(sealed)


def test_a_record_of_another_channel_is_refused() -> None:
    up, _ = shaken()
    _, down = shaken()
    with pytest.raises(NoiseError):
        down.open(up.seal(b"record"))


def test_an_end_that_reads_no_more_still_writes_in_order() -> None:
    """A reset that says why is not encrypted, but what was queued before it is."""
    up, down = shaken()
    with pytest.raises(NoiseError):
        down.open(b"nonsense")
    assert up.open(down.seal(b"one")) == b"one"
    assert up.open(down.seal(b"two")) == b"two"


def test_the_nonce_of_a_record_is_its_number_big_endian_behind_four_zero_bytes() -> None:
    key = bytes(range(32))
    end = NoiseTransport(key, key)
    sealed = [end.seal(str(number).encode()) for number in range(300)]
    for number in (0, 1, 255, 256, 299):
        nonce = bytes(4) + number.to_bytes(8, "big")
        assert AESGCM(key).decrypt(nonce, sealed[number], None) == str(number).encode()


def test_the_last_record_of_a_channel_goes_and_none_after_it() -> None:
    assert MAX_RECORDS == 2**32
    key = bytes(range(32))
    up, down = NoiseTransport(key, key), NoiseTransport(key, key)
    up._sent = down._received = MAX_RECORDS - 1
    assert down.open(up.seal(b"last")) == b"last"
    with pytest.raises(NoiseError, match="as many records"):
        up.seal(b"one more")
    # What a peer that does not stop would send: right in all but its number.
    one_more = AESGCM(key).encrypt(MAX_RECORDS.to_bytes(12, "big"), b"one more", None)
    with pytest.raises(NoiseError, match="as many records"):
        down.open(one_more)


def test_a_channel_that_is_used_up_one_way_still_goes_the_other_way() -> None:
    up, down = shaken()
    up._sent = MAX_RECORDS
    with pytest.raises(NoiseError):
        up.seal(b"record")
    assert up.open(down.seal(b"record")) == b"record"


# -- what is told


def test_an_error_holds_no_secret() -> None:
    message = flipped(initiator().write_first(b"authorization-that-is-secret"), MESSAGE_1_BYTES, 1)
    with pytest.raises(NoiseError) as error:
        responder().read_first(message)
    told = repr(error.value) + str(error.value)
    assert "secret" not in told
    assert HARNESS.seed.hex() not in told
