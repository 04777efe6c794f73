//! Derives keys and values of Flagstone's typed tables: `#[derive(Key)]` and `#[derive(Value)]`.
//!
//! Owns the generated code, and the errors for types that cannot have it; the traits in crate `flagstone` define the
//! bytes. Use this crate through `flagstone`, which exports both names.
#![warn(missing_docs)]

mod shape;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{DeriveInput, Error, parse_macro_input};

use crate::shape::{Shape, Variant};

/// Derives `flagstone::EncodeKey` and `flagstone::Key`: fields in order, so that the keys are ordered
/// as a derived `Ord` orders the values.
#[proc_macro_derive(Key, attributes(flagstone))]
pub fn derive_key(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    key(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `flagstone::Value`: fields in order. A field marked `#[flagstone(default)]`, at the end of a structure,
/// may be missing in a row.
#[proc_macro_derive(Value, attributes(flagstone))]
pub fn derive_value(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    value(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn key(input: &DeriveInput) -> Result<Tokens, Error> {
    let shape = Shape::of(input)?;
    shape.refuse_defaults("a key has all its fields")?;
    shape::refuse_numbers(input)?;
    let name = &input.ident;
    let encode = shape.matching(|variant, tag| key_encode(variant, tag, &quote!(encode_part)));
    let encode_last = shape.matching(|variant, tag| key_encode(variant, tag, &quote!(encode_end)));
    let decode = shape.choosing(&quote!(bytes), |variant| key_decode(variant, &quote!(bytes)));
    let decode_last = shape.choosing(&quote!(&mut bytes), key_decode_last);
    let encode_generics = shape::bounded(&input.generics, &quote!(::flagstone::EncodeKey));
    let (encode_head, type_args, encode_where) = encode_generics.split_for_impl();
    let key_generics = shape::bounded(&input.generics, &quote!(::flagstone::Key));
    let (key_head, _, key_where) = key_generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #encode_head ::flagstone::EncodeKey for #name #type_args #encode_where {
            fn encode_part(&self, out: &mut ::std::vec::Vec<u8>) {
                #encode
            }

            fn encode_end(&self, out: &mut ::std::vec::Vec<u8>) {
                #encode_last
            }
        }

        #[automatically_derived]
        impl #key_head ::flagstone::Key for #name #type_args #key_where {
            fn decode_part(
                bytes: &mut &[u8],
            ) -> ::std::result::Result<Self, ::flagstone::DecodeError> {
                #decode
            }

            #[allow(unused_mut)]
            fn decode_end(
                mut bytes: &[u8],
            ) -> ::std::result::Result<Self, ::flagstone::DecodeError> {
                #decode_last
            }
        }
    })
}

fn tag_of(tag: Option<u8>) -> Tokens {
    tag.map_or_else(Tokens::new, |tag| quote!(out.push(#tag);))
}

/// All fields, the last one by `last`.
fn key_encode(variant: &Variant<'_>, tag: Option<u8>, last: &Tokens) -> Tokens {
    let tag = tag_of(tag);
    let Some((end, rest)) = variant.bindings.split_last() else { return tag };
    quote! {
        #tag
        #(::flagstone::EncodeKey::encode_part(#rest, out);)*
        ::flagstone::EncodeKey::#last(#end, out);
    }
}

fn key_decode(variant: &Variant<'_>, bytes: &Tokens) -> Tokens {
    let reads = variant.bindings.iter().map(|_| quote!(::flagstone::Key::decode_part(#bytes)?));
    variant.made_of(reads)
}

fn key_decode_last(variant: &Variant<'_>) -> Tokens {
    let count = variant.bindings.len();
    if count == 0 {
        let made = variant.made_of(std::iter::empty());
        return quote! {
            if bytes.is_empty() { #made } else {
                ::std::result::Result::Err(::flagstone::DecodeError::Trailing)
            }
        };
    }
    let reads = (1..=count).map(|number| match number == count {
        false => quote!(::flagstone::Key::decode_part(&mut bytes)?),
        true => quote!(::flagstone::Key::decode_end(bytes)?),
    });
    variant.made_of(reads)
}

fn value(input: &DeriveInput) -> Result<Tokens, Error> {
    let shape = Shape::of(input)?;
    let name = &input.ident;
    let encode = shape.matching(|variant, tag| {
        let (tag, bindings) = (tag_of(tag), &variant.bindings);
        quote! {
            #tag
            #(::flagstone::Value::encode(#bindings, out);)*
        }
    });
    let decode = shape.choosing(&quote!(bytes), |variant| {
        let reads = variant.bindings.iter().map(|_| quote!(::flagstone::Value::decode(bytes)?));
        variant.made_of(reads)
    });
    let types = shape.types();
    let from_row = row_with_defaults(&shape)?;
    let generics = shape::bounded(&input.generics, &quote!(::flagstone::Value));
    let (head, type_args, conditions) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #head ::flagstone::Value for #name #type_args #conditions {
            const ACYCLIC: () = { #(let () = <#types as ::flagstone::Value>::ACYCLIC;)* };

            fn encode(&self, out: &mut ::std::vec::Vec<u8>) {
                #encode
            }

            fn decode(
                bytes: &mut &[u8],
            ) -> ::std::result::Result<Self, ::flagstone::DecodeError> {
                const { Self::ACYCLIC };
                #decode
            }

            #from_row
        }
    })
}

/// Reads a whole row, which may end before the fields with defaults; empty for a shape without such fields.
fn row_with_defaults(shape: &Shape<'_>) -> Result<Tokens, Error> {
    let Some((variant, first)) = shape.defaults()? else { return Ok(Tokens::new()) };
    let reads = (0..variant.bindings.len()).map(|index| match index < first {
        true => quote!(::flagstone::Value::decode(bytes)?),
        false => quote! {
            match bytes.is_empty() {
                true => ::std::default::Default::default(),
                false => ::flagstone::Value::decode(bytes)?,
            }
        },
    });
    let made = variant.made_of(reads);
    Ok(quote! {
        fn from_row(
            mut row: &[u8],
        ) -> ::std::result::Result<Self, ::flagstone::DecodeError> {
            const { Self::ACYCLIC };
            let bytes = &mut row;
            let value: ::std::result::Result<Self, ::flagstone::DecodeError> = #made;
            match bytes.is_empty() {
                true => value,
                false => ::std::result::Result::Err(::flagstone::DecodeError::Trailing),
            }
        }
    })
}
