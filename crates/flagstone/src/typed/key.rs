//! Keys: bytes that are ordered as the values are.
//!
//! Owns the encodings of keys. Encodings are part of the stored data: an encoding never changes.
//!
//! Invariants:
//! - **K1** Order: for two values of one type, comparing the bytes compares the values.
//! - **K2** Round trip: decoding gives back the encoded value, and refuses all other bytes.
//! - **K3** No encoding made by `encode_part` is a prefix of another one of its type, so that the bytes
//!   behind it never reverse its order. `encode_end` needs not keep this: nothing follows.
//!
//! | type | bytes |
//! | --- | --- |
//! | unsigned integers | big-endian |
//! | signed integers | big-endian, sign bit turned |
//! | `bool`, `char` | 0 or 1; its number, big-endian, 4 bytes |
//! | `String`, `Vec<u8>` | a 0 as `00 FF`, then `00 01`; as they are where the key ends |
//! | `Option` | 0; or 1 and the value |
//! | arrays, tuples | one element behind the other |
//! | derived structures | their fields in order |
//! | derived enumerations | number of the variant (1 byte), then its fields |

use super::DecodeError;

/// Values that can be turned into the bytes of a key: keys, and the forms that find them (`str`, `[u8]`).
pub trait EncodeKey {
    /// Appends bytes that say where they end (K1, K3).
    fn encode_part(&self, out: &mut Vec<u8>);

    /// Appends the bytes of the last part of a key, which need not say where they end (K1).
    fn encode_end(&self, out: &mut Vec<u8>) {
        self.encode_part(out);
    }

    /// The bytes of the whole key.
    fn to_key(&self) -> Vec<u8> {
        let mut key = Vec::new();
        self.encode_end(&mut key);
        key
    }
}

/// A type of keys. `#[derive(Key)]` makes one of a structure or an enumeration of keys; the derived
/// order of its values (`Ord`) is that of its keys.
///
/// Floating-point numbers are no keys: they have no total order on which all users agree. Enumerations that
/// number their variants are no keys, either: `Ord` would go by the numbers, keys go by the places.
///
/// ```compile_fail
/// #[derive(PartialEq, PartialOrd, flagstone::Key)]
/// enum Level {
///     High = 2,
///     Low = 1,
/// }
/// ```
///
/// ```
/// use flagstone::{EncodeKey, Key};
///
/// #[derive(Debug, PartialEq, PartialOrd, Key)]
/// struct Reading {
///     sensor: String,
///     second: i64,
/// }
///
/// let reading = |sensor: &str, second| Reading { sensor: sensor.into(), second };
/// assert!(reading("attic", 7).to_key() < reading("attic\0", -1).to_key());
/// assert!(reading("attic", -1).to_key() < reading("attic", 7).to_key());
/// let key = reading("attic", 7).to_key();
/// assert_eq!(Reading::from_key(&key)?, reading("attic", 7));
/// assert!(Reading::from_key(&key[..5]).is_err(), "cut short");
/// # Ok::<(), flagstone::DecodeError>(())
/// ```
pub trait Key: EncodeKey + Sized {
    /// Takes one value from the front of `bytes`.
    ///
    /// # Errors
    ///
    /// The bytes are not an encoding by [`EncodeKey::encode_part`].
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError>;

    /// Takes the last part of a key, all of `bytes`.
    ///
    /// # Errors
    ///
    /// The bytes are not an encoding by [`EncodeKey::encode_end`], or more bytes follow.
    fn decode_end(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let key = Self::decode_part(&mut bytes)?;
        if bytes.is_empty() { Ok(key) } else { Err(DecodeError::Trailing) }
    }

    /// The value whose whole key `bytes` is.
    ///
    /// # Errors
    ///
    /// No value has this key.
    fn from_key(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_end(bytes)
    }
}

impl<T: EncodeKey + ?Sized> EncodeKey for &T {
    fn encode_part(&self, out: &mut Vec<u8>) {
        (**self).encode_part(out);
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        (**self).encode_end(out);
    }
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl EncodeKey for $unsigned {
            fn encode_part(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Key for $unsigned {
            fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
                super::take_array(bytes).map(Self::from_be_bytes)
            }
        }

        impl EncodeKey for $signed {
            fn encode_part(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ (1 << (<$unsigned>::BITS - 1))).encode_part(out);
            }
        }

        impl Key for $signed {
            fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
                let turned = <$unsigned>::decode_part(bytes)?;
                Ok((turned ^ (1 << (<$unsigned>::BITS - 1))).cast_signed())
            }
        }
    )*};
}

integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl EncodeKey for bool {
    fn encode_part(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::decode_part(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Variant),
        }
    }
}

impl EncodeKey for char {
    fn encode_part(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode_part(out);
    }
}

impl Key for char {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        char::from_u32(u32::decode_part(bytes)?).ok_or(DecodeError::Text)
    }
}

/// Stands for a 0 inside a byte string, after a 0.
const ESCAPED: u8 = 0xFF;
/// Ends a byte string, after a 0. Below [`ESCAPED`]: a string comes before each longer string that begins
/// with it.
const ENDED: u8 = 0x01;

impl EncodeKey for [u8] {
    fn encode_part(&self, out: &mut Vec<u8>) {
        for &byte in self {
            out.push(byte);
            if byte == 0 {
                out.push(ESCAPED);
            }
        }
        out.extend([0, ENDED]);
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_part(out);
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        self.as_slice().encode_end(out);
    }
}

impl Key for Vec<u8> {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        let mut value = Self::new();
        loop {
            match u8::decode_part(bytes)? {
                0 => match u8::decode_part(bytes)? {
                    ESCAPED => value.push(0),
                    ENDED => return Ok(value),
                    _ => return Err(DecodeError::Escape),
                },
                byte => value.push(byte),
            }
        }
    }

    fn decode_end(bytes: &[u8]) -> Result<Self, DecodeError> {
        Ok(bytes.to_vec())
    }
}

impl EncodeKey for str {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_part(out);
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_end(out);
    }
}

impl EncodeKey for String {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_str().encode_part(out);
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        self.as_str().encode_end(out);
    }
}

impl Key for String {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(Vec::decode_part(bytes)?).map_err(|_| DecodeError::Text)
    }

    fn decode_end(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Text)
    }
}

impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode_part(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        self.iter().for_each(|value| value.encode_part(out));
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        self.iter().for_each(|value| value.encode_end(out));
    }
}

impl<T: Key> Key for Option<T> {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        bool::decode_part(bytes)?.then(|| T::decode_part(bytes)).transpose()
    }

    fn decode_end(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        match bool::decode_part(&mut bytes)? {
            true => T::decode_end(bytes).map(Some),
            false if bytes.is_empty() => Ok(None),
            false => Err(DecodeError::Trailing),
        }
    }
}

impl<T: EncodeKey, const N: usize> EncodeKey for [T; N] {
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|element| element.encode_part(out));
    }

    fn encode_end(&self, out: &mut Vec<u8>) {
        if let Some((last, rest)) = self.split_last() {
            rest.iter().for_each(|element| element.encode_part(out));
            last.encode_end(out);
        }
    }
}

impl<T: Key, const N: usize> Key for [T; N] {
    fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        super::array_of(|_| T::decode_part(bytes))
    }

    fn decode_end(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let array = super::array_of(|index| match index + 1 == N {
            false => T::decode_part(&mut bytes),
            true => T::decode_end(std::mem::take(&mut bytes)),
        })?;
        // An empty array takes nothing.
        if bytes.is_empty() { Ok(array) } else { Err(DecodeError::Trailing) }
    }
}

impl EncodeKey for () {
    fn encode_part(&self, _: &mut Vec<u8>) {}
}

impl Key for () {
    fn decode_part(_: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($name:ident)*) $last:ident;)*) => {$(
        impl<$($name: EncodeKey,)* $last: EncodeKey> EncodeKey for ($($name,)* $last,) {
            #[expect(non_snake_case, reason = "each element is called as its type")]
            fn encode_part(&self, out: &mut Vec<u8>) {
                let ($($name,)* $last,) = self;
                $($name.encode_part(out);)*
                $last.encode_part(out);
            }

            #[expect(non_snake_case, reason = "each element is called as its type")]
            fn encode_end(&self, out: &mut Vec<u8>) {
                let ($($name,)* $last,) = self;
                $($name.encode_part(out);)*
                $last.encode_end(out);
            }
        }

        impl<$($name: Key,)* $last: Key> Key for ($($name,)* $last,) {
            fn decode_part(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
                Ok(($($name::decode_part(bytes)?,)* $last::decode_part(bytes)?,))
            }

            #[allow(unused_mut, reason = "a tuple of one has nothing before its last element")]
            fn decode_end(mut bytes: &[u8]) -> Result<Self, DecodeError> {
                Ok(($($name::decode_part(&mut bytes)?,)* $last::decode_end(bytes)?,))
            }
        }
    )*};
}

tuples! {
    () A;
    (A) B;
    (A B) C;
    (A B C) E;
    (A B C E) F;
    (A B C E F) G;
}

/// Forms that find a key of type `K`: the key itself, or `str` for `String` and `[u8]` for `Vec<u8>`.
pub trait Finds<K>: EncodeKey {}

impl<K: Key> Finds<K> for K {}
impl Finds<String> for str {}
impl Finds<Vec<u8>> for [u8] {}

/// Keys that begin with a `P`: a tuple begins with its first elements.
pub trait StartsWith<P>: Key {}

impl<A: Key, B: Key> StartsWith<A> for (A, B) {}
impl<A: Key, B: Key, C: Key> StartsWith<A> for (A, B, C) {}
impl<A: Key, B: Key, C: Key> StartsWith<(A, B)> for (A, B, C) {}
impl<A: Key, B: Key, C: Key, E: Key> StartsWith<A> for (A, B, C, E) {}
impl<A: Key, B: Key, C: Key, E: Key> StartsWith<(A, B)> for (A, B, C, E) {}
impl<A: Key, B: Key, C: Key, E: Key> StartsWith<(A, B, C)> for (A, B, C, E) {}
