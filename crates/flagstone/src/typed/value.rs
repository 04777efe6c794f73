//! Values: bytes for the content of a row.
//!
//! Owns the encodings of values. Encodings are part of the stored data: an encoding never changes. Decoding
//! trusts no byte: any bytes give a value or an error, and a false size allocates nothing.
//!
//! Invariants:
//! - **V1** Decoding gives back the encoded value.
//! - **V2** `encode` says where it ends, so that values stand one behind the other.
//!
//! | type | bytes |
//! | --- | --- |
//! | integers, `f32`, `f64` | little-endian |
//! | `bool`, `char` | 0 or 1; its number, 4 bytes |
//! | `String`, `Vec` | number of bytes or elements (seven bits a byte, low ones first), then these; see below |
//! | `Option` | 0; or 1 and the value |
//! | arrays, tuples | one element behind the other |
//! | `Box<T>`, `()` | as `T`; nothing |
//! | derived structures | their fields in order |
//! | derived enumerations | number of the variant (1 byte), then its fields |
//!
//! A count in the head of a `Vec` must be plausible by the bytes that follow. So more than 65,535 elements
//! that take no bytes, as `()`, are followed by a zero each.
//!
//! A `String` or a `Vec<u8>` that is the whole row is its bytes as they are, so that a typed table of them is
//! a plain table for every other reader too.

use super::{DecodeError, take, take_array};

/// A type of values. `#[derive(Value)]` makes one of a structure or an enumeration of values.
///
/// Rows outlive the types they were written with. A field that was added at the end of a structure, and is
/// marked `#[flagstone(default)]`, gets its default where a row ends before it; a variant that was added at
/// the end of an enumeration changes none of the others. No other change of a type is possible. Inside other
/// values a row does not end, so that there every field must be there.
///
/// A type cannot contain itself, not even in a list: a row of a few bytes could nest too deep to be read.
///
/// ```compile_fail,E0391
/// #[derive(flagstone::Value)]
/// struct Node {
///     children: Vec<Node>,
/// }
/// let _ = <Node as flagstone::Value>::from_row(&[0]);
/// ```
///
/// ```compile_fail
/// #[derive(flagstone::Value)]
/// struct New {
///     #[flagstone(default)]
///     visits: u32,
///     name: String, // follows a field that may be missing
/// }
/// ```
///
/// ```compile_fail
/// #[derive(flagstone::Value)]
/// #[flagstone(default)] // of the whole row: it belongs to fields
/// struct Counters {
///     visits: u32,
/// }
/// ```
///
/// ```compile_fail
/// #[derive(flagstone::Value)]
/// enum Entry {
///     #[flagstone(default)]
///     Empty,
/// }
/// ```
///
/// ```
/// use flagstone::Value;
///
/// #[derive(Debug, PartialEq, Value)]
/// struct Old {
///     name: String,
/// }
///
/// #[derive(Debug, PartialEq, Value)]
/// struct New {
///     name: String,
///     #[flagstone(default)]
///     visits: u32,
/// }
///
/// let row = Old { name: "Ada".into() }.to_row();
/// assert_eq!(New::from_row(&row)?, New { name: "Ada".into(), visits: 0 });
/// # Ok::<(), flagstone::DecodeError>(())
/// ```
pub trait Value: Sized {
    /// The `ACYCLIC` of the parts: a type that contains itself has none, and does not compile.
    #[doc(hidden)]
    const ACYCLIC: () = ();

    /// Appends bytes that say where they end (V2).
    fn encode(&self, out: &mut Vec<u8>);

    /// Takes one value from the front of `bytes`.
    ///
    /// # Errors
    ///
    /// The bytes are not an encoding by [`Value::encode`].
    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError>;

    /// The bytes of the whole row.
    fn to_row(&self) -> Vec<u8> {
        let mut row = Vec::new();
        self.encode(&mut row);
        row
    }

    /// The value whose row `bytes` is.
    ///
    /// # Errors
    ///
    /// No value has this row.
    fn from_row(mut bytes: &[u8]) -> Result<Self, DecodeError> {
        let value = Self::decode(&mut bytes)?;
        if bytes.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }

    /// Appends elements of a list; bytes go as one piece.
    #[doc(hidden)]
    fn encode_all(elements: &[Self], out: &mut Vec<u8>) {
        elements.iter().for_each(|element| element.encode(out));
    }

    /// Takes elements of a list; bytes come as one piece.
    #[doc(hidden)]
    fn decode_all(count: usize, bytes: &mut &[u8]) -> Result<Vec<Self>, DecodeError> {
        // An element without bytes would make any count plausible.
        if count > bytes.len().max(EMPTY_COUNT_MAX) {
            return Err(DecodeError::Truncated);
        }
        let before = bytes.len();
        let elements = (0..count).map(|_| Self::decode(bytes)).collect::<Result<_, _>>()?;
        let zeros = take(bytes, zeros_behind(count, before - bytes.len()))?;
        if zeros.iter().all(|byte| *byte == 0) { Ok(elements) } else { Err(DecodeError::Count) }
    }

    /// The row of a list of this type.
    #[doc(hidden)]
    fn list_to_row(elements: &[Self]) -> Vec<u8> {
        let mut row = Vec::new();
        encode_list(elements, &mut row);
        row
    }

    /// The list of this type whose row `bytes` is.
    #[doc(hidden)]
    fn list_from_row(mut bytes: &[u8]) -> Result<Vec<Self>, DecodeError> {
        let list = decode_list(&mut bytes)?;
        if bytes.is_empty() { Ok(list) } else { Err(DecodeError::Trailing) }
    }
}

/// Elements of a list that may be there without a byte.
const EMPTY_COUNT_MAX: usize = u16::MAX as usize;

/// Zeros behind a list of `count` elements that take `size` bytes together.
const fn zeros_behind(count: usize, size: usize) -> usize {
    if size == 0 && count > EMPTY_COUNT_MAX { count } else { 0 }
}

fn encode_list<T: Value>(elements: &[T], out: &mut Vec<u8>) {
    encode_count(elements.len(), out);
    let begin = out.len();
    T::encode_all(elements, out);
    out.resize(out.len() + zeros_behind(elements.len(), out.len() - begin), 0);
}

fn decode_list<T: Value>(bytes: &mut &[u8]) -> Result<Vec<T>, DecodeError> {
    let count = decode_count(bytes)?;
    T::decode_all(count, bytes)
}

fn encode_count(count: usize, out: &mut Vec<u8>) {
    let mut rest = count;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn decode_count(bytes: &mut &[u8]) -> Result<usize, DecodeError> {
    let mut count = 0_usize;
    for shift in (0..usize::BITS).step_by(7) {
        let [byte] = take_array(bytes)?;
        let bits = usize::from(byte & 0x7F);
        let shifted = bits << shift;
        if shifted >> shift != bits {
            return Err(DecodeError::Count);
        }
        count |= shifted;
        if byte < 0x80 {
            // A count has one form only: no byte of zeros at its end.
            return if byte == 0 && shift > 0 { Err(DecodeError::Count) } else { Ok(count) };
        }
    }
    Err(DecodeError::Count)
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Value for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
                take_array(bytes).map(Self::from_le_bytes)
            }
        }
    )*};
}

numbers! { i8 u16 i16 u32 i32 u64 i64 u128 i128 f32 f64 }

impl Value for u8 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        let [byte] = take_array(bytes)?;
        Ok(byte)
    }

    fn encode_all(elements: &[Self], out: &mut Vec<u8>) {
        out.extend_from_slice(elements);
    }

    fn decode_all(count: usize, bytes: &mut &[u8]) -> Result<Vec<Self>, DecodeError> {
        take(bytes, count).map(<[u8]>::to_vec)
    }

    fn list_to_row(elements: &[Self]) -> Vec<u8> {
        elements.to_vec()
    }

    fn list_from_row(bytes: &[u8]) -> Result<Vec<Self>, DecodeError> {
        Ok(bytes.to_vec())
    }
}

impl Value for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::decode(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Variant),
        }
    }
}

impl Value for char {
    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_u32(u32::decode(bytes)?).ok_or(DecodeError::Text)
    }
}

impl<T: Value> Value for Vec<T> {
    const ACYCLIC: () = T::ACYCLIC;

    fn encode(&self, out: &mut Vec<u8>) {
        encode_list(self, out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        decode_list(bytes)
    }

    fn to_row(&self) -> Vec<u8> {
        T::list_to_row(self)
    }

    fn from_row(bytes: &[u8]) -> Result<Self, DecodeError> {
        T::list_from_row(bytes)
    }
}

impl Value for String {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_list(self.as_bytes(), out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(decode_list(bytes)?).map_err(|_| DecodeError::Text)
    }

    fn to_row(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    fn from_row(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Text)
    }
}

impl<T: Value> Value for Option<T> {
    const ACYCLIC: () = T::ACYCLIC;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        self.iter().for_each(|value| value.encode(out));
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        bool::decode(bytes)?.then(|| T::decode(bytes)).transpose()
    }
}

impl<T: Value, const N: usize> Value for [T; N] {
    const ACYCLIC: () = T::ACYCLIC;

    fn encode(&self, out: &mut Vec<u8>) {
        T::encode_all(self, out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        super::array_of(|_| T::decode(bytes))
    }
}

impl<T: Value> Value for Box<T> {
    const ACYCLIC: () = T::ACYCLIC;

    fn encode(&self, out: &mut Vec<u8>) {
        T::encode(self, out);
    }

    fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
        T::decode(bytes).map(Self::new)
    }
}

impl Value for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($name:ident)*);)*) => {$(
        impl<$($name: Value,)*> Value for ($($name,)*) {
            const ACYCLIC: () = { $(let () = $name::ACYCLIC;)* };

            #[expect(non_snake_case, reason = "each element is called as its type")]
            fn encode(&self, out: &mut Vec<u8>) {
                let ($($name,)*) = self;
                $($name.encode(out);)*
            }

            fn decode(bytes: &mut &[u8]) -> Result<Self, DecodeError> {
                Ok(($($name::decode(bytes)?,)*))
            }
        }
    )*};
}

tuples! {
    (A);
    (A B);
    (A B C);
    (A B C E);
    (A B C E F);
    (A B C E F G);
}
