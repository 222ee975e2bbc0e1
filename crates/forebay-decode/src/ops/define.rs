//! The macro that expands the table of transforms (`table.rs`): the enum [`Op`](super::Op), its parser, its printed
//! form, the rows for Python and the documents, and the dispatch from an op to its code.
//!
//! For each row `Name { field: Type }` there is a variant `Op::Name { field: Type }` and a struct
//! `args::Name { op, field: &Type }`, the op's arguments borrowed from it. A transform's file implements
//! [`Transform`](super::transform::Transform) for that struct, and nothing else has to know the transform.

macro_rules! transforms {
    ($(
        $(#[$attribute:meta])*
        $name:ident $({
            $( $(#[$field_attribute:meta])* $field:ident : $type:ty, )*
        })?
        takes $takes:ident, reference $reference:literal, difference $difference:literal;
    )*) => {
        /// One transform. The fields are torchvision's arguments; see the module's page.
        #[derive(Clone, Debug)]
        pub enum Op {
            $(
                $(#[$attribute])*
                $name $({ $( $(#[$field_attribute])* $field: $type, )* })?,
            )*
            /// A callable of the user's own.
            Custom(Arc<dyn Custom>),
        }

        /// The arguments of each op, borrowed from it.
        pub(crate) mod args {
            use super::*;
            $(
                // Ops that the fused paths match by pattern access themselves through `op`.
                #[allow(dead_code)]
                pub(crate) struct $name<'a> {
                    pub(crate) op: &'a Op,
                    $($( pub(crate) $field: &'a $type, )*)?
                }
            )*
        }

        impl Op {
            /// Every transform, in the order of the documentation.
            pub const TABLE: &'static [Row] = &[$(
                Row {
                    name: stringify!($name),
                    arguments: &[$($( stringify!($field), )*)?],
                    takes: Takes::$takes,
                    reference: $reference,
                    difference: $difference,
                },
            )*];

            /// The transform of this name, as Python gives it: every argument by its name.
            pub fn parse(name: &str, arguments: Vec<(String, Argument)>) -> Result<Self> {
                let mut given = Arguments::new(name, arguments);
                $(
                    if name == stringify!($name) {
                        let op = Self::$name $({ $( $field: given.take(stringify!($field))?, )* })?;
                        return given.finish(op);
                    }
                )*
                Err(Error::config(format!("transform: expected one of forebay.transforms, got {name:?}")))
            }

            /// How it is called in Python; a [`Custom`](super::Custom) names itself.
            pub fn name(&self) -> &str {
                match self {
                    $( Self::$name $({ $( $field: _, )* })? => stringify!($name), )*
                    Self::Custom(custom) => custom.name(),
                }
            }

            /// Calls `visit` with the code of this op.
            #[inline]
            pub(crate) fn visit<R>(&self, visit: impl FnOnce(&dyn Transform) -> R) -> R {
                match self {
                    $( Self::$name $({ $( $field, )* })? => visit(&args::$name { op: self, $($( $field, )*)? }), )*
                    Self::Custom(custom) => visit(&Own { op: self, custom }),
                }
            }
        }

        impl fmt::Display for Op {
            /// As it is written in Python, with every argument, so that two pipelines print alike only if they are alike.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(
                        Self::$name $({ $( $field, )* })? => {
                            let arguments: &[(&str, &dyn Setting)] = &[$($( (stringify!($field), $field), )*)?];
                            print(f, stringify!($name), arguments)
                        }
                    )*
                    Self::Custom(custom) => print(f, custom.name(), &[]),
                }
            }
        }

        $(
            impl Of for args::$name<'_> {
                fn op(&self) -> &Op {
                    self.op
                }
            }
        )*
    };
}

pub(crate) use transforms;
