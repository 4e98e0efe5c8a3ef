//! The page that shows every call and sends it, all of it served from here.

use std::sync::Arc;

use actix_web::http::header::{CONTENT_ENCODING, ContentEncoding, ContentType};
use actix_web::web::Path;
use actix_web::{HttpResponse, HttpResponseBuilder};
use utoipa_swagger_ui::{Config, serve};

use crate::openapi::openapi_json;
use crate::problem::{Code, Problem};

/// The OpenAPI document.
pub async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::json()).body(openapi_json())
}

/// `/docs` without a slash.
pub async fn docs() -> HttpResponse {
    HttpResponse::MovedPermanently().insert_header(("location", "/docs/")).finish()
}

/// The page and its parts. One that is not there is a problem like everywhere else.
pub async fn page(path: Path<String>) -> Result<HttpResponse, Problem> {
    let file = serve(&path, Arc::new(Config::from("/openapi.json")));
    let file = file.ok().flatten().ok_or_else(|| Problem::new(Code::NotFound, "the page has no such part"))?;
    let mut response: HttpResponseBuilder = HttpResponse::Ok();
    if file.gzpipped {
        response.insert_header((CONTENT_ENCODING, ContentEncoding::Gzip));
    }
    Ok(response.content_type(file.content_type).body(file.bytes.into_owned()))
}
