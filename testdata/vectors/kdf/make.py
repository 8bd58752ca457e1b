#!/usr/bin/env python3
"""Computes the vectors in this folder with programs that are not ours.

Hashes and PBKDF2 come from Python's hashlib (OpenSSL), Argon2 from libargon2, and the
anti-forensic split from the few lines below, which follow the LUKS1 specification.
Needs OpenSSL's legacy provider for ripemd160 and whirlpool.
"""
import ctypes
import ctypes.util
import hashlib

HASHES = {
    "sha1": "sha1", "sha224": "sha224", "sha256": "sha256", "sha384": "sha384",
    "sha512": "sha512", "sha3-224": "sha3_224", "sha3-256": "sha3_256",
    "sha3-384": "sha3_384", "sha3-512": "sha3_512", "ripemd160": "ripemd160",
    "whirlpool": "whirlpool", "blake2b-160": ("b", 20), "blake2b-256": ("b", 32),
    "blake2b-384": ("b", 48), "blake2b-512": ("b", 64), "blake2s-128": ("s", 16),
    "blake2s-160": ("s", 20), "blake2s-224": ("s", 28), "blake2s-256": ("s", 32),
}


def new(name, data=b""):
    spec = HASHES[name]
    if isinstance(spec, tuple):
        kind = hashlib.blake2b if spec[0] == "b" else hashlib.blake2s
        return kind(data, digest_size=spec[1])
    return hashlib.new(spec, data)


def hmac(name, key, data):
    block = new(name).block_size
    if len(key) > block:
        key = new(name, key).digest()
    key = key.ljust(block, b"\0")
    inner = new(name, bytes(b ^ 0x36 for b in key) + data).digest()
    return new(name, bytes(b ^ 0x5C for b in key) + inner).digest()


def pbkdf2(name, password, salt, iterations, length):
    out = b""
    block = 1
    while len(out) < length:
        u = hmac(name, password, salt + block.to_bytes(4, "big"))
        t = u
        for _ in range(iterations - 1):
            u = hmac(name, password, u)
            t = bytes(a ^ b for a, b in zip(t, u))
        out += t
        block += 1
    return out[:length]


def diffuse(name, block):
    size = new(name).digest_size
    pieces = [block[i:i + size] for i in range(0, len(block), size)]
    return b"".join(
        new(name, i.to_bytes(4, "big") + piece).digest()[:len(piece)]
        for i, piece in enumerate(pieces))


def af_split(name, key, stripes):
    """The stripes are not random but count up, so that the result is one."""
    d = bytes(len(key))
    out = b""
    for i in range(stripes - 1):
        stripe = bytes((i * 7 + j * 13 + 1) & 0xFF for j in range(len(key)))
        out += stripe
        d = diffuse(name, bytes(a ^ b for a, b in zip(d, stripe)))
    return out + bytes(a ^ b for a, b in zip(d, key))


def argon2(kind, time, memory, lanes, password, salt, length):
    library = ctypes.CDLL(ctypes.util.find_library("argon2") or "libargon2.so.1")
    out = ctypes.create_string_buffer(length)
    function = getattr(library, kind + "_hash_raw")
    size = ctypes.c_size_t
    result = function(time, memory, lanes, password, size(len(password)), salt,
                      size(len(salt)), out, size(length))
    assert result == 0, result
    return out.raw


def main():
    with open("hash.txt", "w") as f:
        f.write("# name, digest of the text abc\n")
        for name in HASHES:
            f.write(f"{name} {new(name, b'abc').hexdigest()}\n")
    with open("pbkdf2.txt", "w") as f:
        f.write("# hash, password, salt (hex), iterations, output\n")
        cases = [(b"password", b"salt", 1, 20), (b"\0bin\n", bytes(range(32)), 7, 64),
                 (b"k" * 200, bytes(32), 3, 33), (b"", bytes(range(32)), 2, 64)]
        for name in HASHES:
            for password, salt, iterations, length in cases:
                key = pbkdf2(name, password, salt, iterations, length)
                f.write(f"{name} {password.hex() or '-'} {salt.hex()} {iterations} {key.hex()}\n")
    with open("argon2.txt", "w") as f:
        f.write("# variant, passes, KiB, lanes, password, salt (hex), output\n")
        cases = [(2, 256, 1, 32), (3, 1024, 2, 64), (4, 1000, 4, 64), (1, 32, 4, 16)]
        for kind in ("argon2i", "argon2id"):
            for time, memory, lanes, length in cases:
                password, salt = b"pass\0word\n", bytes(range(32))
                key = argon2(kind, time, memory, lanes, password, salt, length)
                f.write(f"{kind} {time} {memory} {lanes} {password.hex()} {salt.hex()} "
                        f"{key.hex()}\n")
    with open("af.txt", "w") as f:
        f.write("# hash, key (hex), stripes, the last stripe of the split (hex)\n")
        for name in HASHES:
            for length, stripes in ((16, 2), (32, 40), (64, 11), (33, 5), (100, 3)):
                key = bytes((j * 31 + 5) & 0xFF for j in range(length))
                material = af_split(name, key, stripes)
                f.write(f"{name} {key.hex()} {stripes} {material[-length:].hex()}\n")


main()
