//! The value of a key, and the effect of an operation on it.

use super::op::Op;
use super::patch::Patch;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// The descriptor of a value on pages of its own.
    Ref(Vec<u8>),
}

impl Value {
    /// The operation that sets this value.
    pub(crate) fn as_put(&self) -> Op<'_> {
        match self {
            Self::Inline(value) => Op::Put(value),
            Self::Ref(descriptor) => Op::PutRef(descriptor),
        }
    }
}

/// A patch met an out-of-line value: a caller that can read the value must apply the patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfLine<'a> {
    /// The patch that could not be applied.
    pub(crate) patch: Patch<'a>,
}

/// Applies `op` to `value`.
///
/// # Errors
///
/// `OutOfLine` when the value's bytes are not in memory; `value` is unchanged then.
pub(crate) fn apply<'a>(op: Op<'a>, value: &mut Option<Value>) -> Result<(), OutOfLine<'a>> {
    match op {
        Op::Put(bytes) => *value = Some(Value::Inline(bytes.to_vec())),
        Op::PutRef(descriptor) => *value = Some(Value::Ref(descriptor.to_vec())),
        Op::Delete => *value = None,
        Op::Patch(patch) => match value {
            Some(Value::Inline(bytes)) => patch.apply(bytes),
            Some(Value::Ref(_)) => return Err(OutOfLine { patch }),
            None => {}
        },
    }
    Ok(())
}
