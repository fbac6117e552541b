// An empty libmlx5.so.1, for plugins that link it: no device is an mlx5 device.
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

bool mlx5dv_is_supported(void* device);
int mlx5dv_query_device(void* context, void* attributes);
int mlx5dv_init_obj(void* object, unsigned long type);
void* mlx5dv_create_qp(void* context, void* attributes, void* mlx5_attributes);

bool mlx5dv_is_supported(void* device) {
  (void)device;
  return false;
}

int mlx5dv_query_device(void* context, void* attributes) {
  (void)context;
  (void)attributes;
  return EOPNOTSUPP;
}

int mlx5dv_init_obj(void* object, unsigned long type) {
  (void)object;
  (void)type;
  return EOPNOTSUPP;
}

void* mlx5dv_create_qp(void* context, void* attributes, void* mlx5_attributes) {
  (void)context;
  (void)attributes;
  (void)mlx5_attributes;
  errno = EOPNOTSUPP;
  return NULL;
}
