//! The shape of a type: one list of fields, or one for each variant.
//!
//! Owns the reading of the type and of its attributes; knows neither keys nor values.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::{
    Attribute, Data, DeriveInput, Error, Field, Fields, Generics, Ident, Index, Member, Type,
    parse_quote,
};

/// A list of fields, with the code that makes it and takes it apart.
pub(crate) struct Variant<'a> {
    path: Tokens,
    members: Vec<Member>,
    fields: Vec<&'a Field>,
    /// A variable for each field.
    pub(crate) bindings: Vec<Ident>,
}

impl<'a> Variant<'a> {
    fn new(path: Tokens, fields: &'a Fields) -> Self {
        let member = |(index, field): (usize, &Field)| match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index::from(index)),
        };
        let members: Vec<_> = fields.iter().enumerate().map(member).collect();
        let binding = |index| Ident::new(&format!("field_{index}"), Span::mixed_site());
        let bindings = (0..members.len()).map(binding).collect();
        Self { path, members, fields: fields.iter().collect(), bindings }
    }

    /// The value of these fields, read in order; a read may return early.
    pub(crate) fn made_of(&self, reads: impl Iterator<Item = Tokens>) -> Tokens {
        let (path, members) = (&self.path, &self.members);
        quote!(::std::result::Result::Ok(#path { #(#members: #reads),* }))
    }
}

/// The shape of a type.
pub(crate) struct Shape<'a> {
    variants: Vec<Variant<'a>>,
    is_enum: bool,
}

impl<'a> Shape<'a> {
    /// The shape of a structure or an enumeration.
    ///
    /// # Errors
    ///
    /// The type is a union, has too many variants, or has an unknown or misplaced attribute.
    pub(crate) fn of(input: &'a DeriveInput) -> Result<Self, Error> {
        refuse_attributes(&input.attrs)?;
        let (variants, is_enum) = match &input.data {
            Data::Struct(data) => (vec![Variant::new(quote!(Self), &data.fields)], false),
            Data::Enum(data) => {
                let variant = |variant: &'a syn::Variant| {
                    refuse_attributes(&variant.attrs)?;
                    let name = &variant.ident;
                    Ok(Variant::new(quote!(Self::#name), &variant.fields))
                };
                (data.variants.iter().map(variant).collect::<Result<Vec<_>, Error>>()?, true)
            }
            _ => return Err(Error::new_spanned(&input.ident, "a union is neither key nor value")),
        };
        if variants.len() > usize::from(u8::MAX) + 1 {
            return Err(Error::new_spanned(&input.ident, "at most 256 variants have a number"));
        }
        for field in variants.iter().flat_map(|variant| &variant.fields) {
            has_default(field)?;
        }
        Ok(Self { variants, is_enum })
    }

    fn tags(&self) -> impl Iterator<Item = Option<u8>> + '_ {
        (0..=u8::MAX).map(|tag| self.is_enum.then_some(tag))
    }

    /// `match self`, with the code from `arm` for each list of fields and its number.
    pub(crate) fn matching(&self, arm: impl Fn(&Variant<'_>, Option<u8>) -> Tokens) -> Tokens {
        if self.variants.is_empty() {
            return quote!(match *self {});
        }
        let arms = self.variants.iter().zip(self.tags()).map(|(variant, tag)| {
            let (path, members, bindings) = (&variant.path, &variant.members, &variant.bindings);
            let arm = arm(variant, tag);
            quote!(#path { #(#members: #bindings),* } => { #arm })
        });
        quote!(match self { #(#arms)* })
    }

    /// The code from `make` for the only list of fields, or for the one whose number comes first in `bytes`.
    pub(crate) fn choosing(&self, bytes: &Tokens, make: impl Fn(&Variant<'_>) -> Tokens) -> Tokens {
        if let (false, [variant]) = (self.is_enum, self.variants.as_slice()) {
            return make(variant);
        }
        let arms = self.variants.iter().zip(0..=u8::MAX).map(|(variant, tag)| {
            let made = make(variant);
            quote!(#tag => { #made })
        });
        quote! {
            match <u8 as ::flagstone::Key>::decode_part(#bytes)? {
                #(#arms)*
                _ => ::std::result::Result::Err(::flagstone::DecodeError::Variant),
            }
        }
    }

    /// Types of all fields.
    pub(crate) fn types(&self) -> Vec<&'a Type> {
        self.variants.iter().flat_map(|variant| &variant.fields).map(|field| &field.ty).collect()
    }

    /// Refuses every field with a default, with the reason.
    pub(crate) fn refuse_defaults(&self, reason: &str) -> Result<(), Error> {
        for field in self.variants.iter().flat_map(|variant| &variant.fields) {
            if has_default(field)? {
                return Err(Error::new_spanned(field, reason));
            }
        }
        Ok(())
    }

    /// The fields, and the index of the first one with a default; none without any.
    ///
    /// # Errors
    ///
    /// A field without a default follows one with a default, or an enumeration has a default.
    pub(crate) fn defaults(&self) -> Result<Option<(&Variant<'a>, usize)>, Error> {
        if self.is_enum {
            self.refuse_defaults("only a structure's fields can have defaults")?;
            return Ok(None);
        }
        let Some(variant) = self.variants.first() else { return Ok(None) };
        let mut first = None;
        for (index, field) in variant.fields.iter().enumerate() {
            match (has_default(field)?, first) {
                (true, None) => first = Some(index),
                (false, Some(_)) => {
                    let reason = "a field without a default cannot follow one that has it";
                    return Err(Error::new_spanned(field, reason));
                }
                _ => {}
            }
        }
        Ok(first.map(|first| (variant, first)))
    }
}

/// Our own attributes.
fn own(attributes: &[Attribute]) -> impl Iterator<Item = &Attribute> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("flagstone"))
}

/// Refuses attributes of a type or of a variant: they would have no effect.
fn refuse_attributes(attributes: &[Attribute]) -> Result<(), Error> {
    match own(attributes).next() {
        Some(attribute) => Err(Error::new_spanned(attribute, "a field alone can have a default")),
        None => Ok(()),
    }
}

fn has_default(field: &Field) -> Result<bool, Error> {
    let mut found = false;
    for attribute in own(&field.attrs) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("default") {
            true => {
                found = true;
                Ok(())
            }
            false => Err(meta.error("the attribute that exists is `default`")),
        })?;
    }
    Ok(found)
}

/// `generics`, with `bound` on each type.
pub(crate) fn bounded(generics: &Generics, bound: &Tokens) -> Generics {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(#bound));
    }
    generics
}

/// Refuses variants with a number of their own: values would be ordered by this number, but keys by the place of the
/// variant.
pub(crate) fn refuse_numbers(input: &DeriveInput) -> Result<(), Error> {
    let Data::Enum(data) = &input.data else { return Ok(()) };
    match data.variants.iter().find(|variant| variant.discriminant.is_some()) {
        Some(variant) => Err(Error::new_spanned(
            variant,
            "keys are ordered by the places of variants: write them in order, without numbers",
        )),
        None => Ok(()),
    }
}
