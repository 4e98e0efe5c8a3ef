//! What the derives cannot say: the problems every call may answer with, and items of a batch that fit more than one shape.

use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, Schema};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr};
use utoipa::{Modify, PartialSchema, ToSchema};

use crate::wire::ProblemBody;

/// Gives every operation its problems.
pub struct Problems;

impl Modify for Problems {
    fn modify(&self, document: &mut OpenApi) {
        let name = ProblemBody::name().into_owned();
        if let Some(components) = &mut document.components {
            components.schemas.insert(name.clone(), ProblemBody::schema());
        }
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                add(operation, &name);
            }
        }
    }
}

fn add(operation: &mut Operation, schema: &str) {
    let content = || Content::new(Some(RefOr::Ref(Ref::from_schema_name(schema))));
    let problem = |text: &str| ResponseBuilder::new().description(text).content("application/problem+json", content()).build();
    let responses = &mut operation.responses.responses;
    for (status, text) in [("4XX", "a caller's mistake"), ("503", "cannot be decided or done now")] {
        responses.entry(status.into()).or_insert_with(|| RefOr::T(problem(text)));
    }
    // The handlers describe theirs in words; all have the one shape.
    for (status, response) in responses.iter_mut() {
        if let RefOr::T(response) = response
            && status.starts_with(['4', '5'])
            && response.content.is_empty()
        {
            response.content.insert("application/problem+json".into(), RefOr::T(content()));
        }
    }
}

/// A full answer has all that the short one has: of an item's shapes several may fit.
pub struct Items;

impl Modify for Items {
    fn modify(&self, document: &mut OpenApi) {
        for schema in document.components.iter_mut().flat_map(|c| c.schemas.values_mut()) {
            if let RefOr::T(Schema::OneOf(one)) = schema
                && one.items.len() > 1
                && one.description.as_deref() == Some("One item's answer.")
            {
                let any = one.items.drain(..).fold(AnyOfBuilder::new(), AnyOfBuilder::item);
                *schema = RefOr::T(Schema::AnyOf(any.description(one.description.clone()).build()));
            }
        }
    }
}
