//! What stands under a key, and what an operation makes of it.

use super::op::Op;
use super::patch::Patch;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// The bytes themselves.
    Inline(Vec<u8>),
    /// The descriptor of a value that has pages of its own.
    Ref(Vec<u8>),
}

impl Value {
    /// The operation that sets it.
    pub(crate) fn as_put(&self) -> Op<'_> {
        match self {
            Self::Inline(value) => Op::Put(value),
            Self::Ref(descriptor) => Op::PutRef(descriptor),
        }
    }
}

/// A patch met an out-of-line value: whoever can read the value must apply it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfLine<'a> {
    /// The patch that could not be applied.
    pub(crate) patch: Patch<'a>,
}

/// Applies `op` to `value`.
///
/// # Errors
///
/// `OutOfLine` when the value's bytes are not at hand; `value` is unchanged then.
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
