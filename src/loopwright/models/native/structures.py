"""The structures of decode.c, field by field."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_double, c_int64, c_void_p


class NativeProduct(Structure):
    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64))


class NativeNorm(Structure):
    _fields_ = (("weight", c_void_p), ("epsilon", c_double))


class NativeLayer(Structure):
    _fields_ = (
        ("before_attention", NativeNorm),
        ("projection", NativeProduct),
        ("query", NativeNorm),
        ("key", NativeNorm),
        ("output", NativeProduct),
        ("before_feed_forward", NativeNorm),
        ("gate", NativeProduct),
        ("up", NativeProduct),
        ("down", NativeProduct),
        ("scaling", c_double),
        ("window", c_int64),
    )


class NativeModel(Structure):
    _fields_ = (
        ("layers", c_int64),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("dim", c_int64),
        ("inner", c_int64),
        ("layer", ctypes.POINTER(NativeLayer)),
        ("last", NativeNorm),
        ("head", NativeProduct),
        ("table", c_void_p),
    )


class NativeBatch(Structure):
    _fields_ = (
        ("tokens", c_int64),
        ("arenas", c_int64),
        ("ids", c_void_p),
        ("angles", c_void_p),
        ("cells", c_void_p),
        ("capacities", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
    )
