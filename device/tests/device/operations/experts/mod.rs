mod gemm;
mod glu;
mod limit;
mod load;
mod route;
mod rows;
