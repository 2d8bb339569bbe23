/* Which image of a module a device gets: of those that the driver can read the one that suits it best, embedded or a
 * file. Nothing is loaded here. */
#ifndef KW_IMAGE_H
#define KW_IMAGE_H

/* How well an image suits a device: 0 not at all, otherwise more is better. Machine code runs on devices of the same
 * major capability with the same or a higher minor one, PTX on all that are not older than it. With suffix 'a' code
 * runs on exactly its capability, with 'f' on the same major from its minor on.
 * Machine code goes before PTX; then exact with 'a', exact, family, and the highest capability. */
KW_COLD int kw_suitability(const kw_image *image, int capability) {
  int score = 1 + 2 * image->capability + (image->ptx ? 0 : 10000);
  bool same_major = image->capability / 10 == capability / 10;
  if (image->capability > capability) return 0;
  if (image->suffix == 'a') return image->capability == capability ? score + 2000 : 0;
  if (image->suffix == 'f') return same_major ? score + 500 : 0;
  if (image->capability == capability) return score + 1000;
  return same_major || image->ptx ? score : 0;
}

/* The same of an image that the driver can read; of two that suit alike the one that a newer CUDA has made is better.
 * `has` is the CUDA version of the driver. */
KW_COLD int kw_usability(const kw_image *image, int capability, int has) {
  int score = image->driver > has ? 0 : kw_suitability(image, capability);
  return score ? 100000 * score + image->driver : 0;
}

/* Whether an image asks for an older driver than another one, or for the same and suits the device better. */
KW_COLD bool kw_asks_less(const kw_image *image, const kw_image *other, int capability) {
  if (image->driver != other->driver) return image->driver < other->driver;
  return kw_suitability(image, capability) > kw_suitability(other, capability);
}

/* The driver is too old for all images that suit the device; `best` is the one that asks for least. */
KW_COLD int kw_raise_old_driver(const kw_module *module, const kw_image *best, int has, int id) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "the code of variant %s for cuda:%d (%s) needs a driver for CUDA %d.%d or newer; this one is for CUDA %d.%d",
            module->variant, id, best->arch, best->driver / 1000, best->driver % 1000 / 10, has / 1000, has % 1000 / 10);
  kw_append_newer_driver(&text, best->driver, has);
  return kw_raise_text("RuntimeError", &text);
}

KW_COLD int kw_raise_no_image(const kw_module *module, int capability, int id) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "cuda:%d is an sm_%d, and variant %s was built for ", id, capability, module->variant);
  for (int i = 0; i < module->num_images; ++i) kw_append(&text, "%s%s", i ? ", " : "", module->images[i].arch);
  kw_append(&text, "%s\n  remedy: add sm_%d to its archs", module->num_images ? "" : "no arch", capability);
  return kw_raise_text("RuntimeError", &text);
}

/* The index of the best image for the device, or -1 with an error raised. */
KW_COLD int kw_choose_image(const kw_module *module, int capability, int has, int id) {
  const kw_image *images = module->images, *least = NULL;
  int best = -1, best_score = 0;
  for (int i = 0; i < module->num_images; ++i) {
    int score = kw_usability(&images[i], capability, has);
    if (score > best_score) best = i, best_score = score;
    if (kw_suitability(&images[i], capability) && (!least || kw_asks_less(&images[i], least, capability)))
      least = &images[i];
  }
  if (best >= 0) return best;
  return least ? kw_raise_old_driver(module, least, has, id) : kw_raise_no_image(module, capability, id);
}

/* The image to load on a device. */
typedef struct kw_choice {
  int index;
  kw_text path; /* of the file that it is in, if it is in one */
} kw_choice;

KW_COLD int kw_index_of(const kw_module *module, const char *arch, size_t length) {
  for (int i = 0; i < module->num_images; ++i) {
    const char *name = module->images[i].arch;
    if (strlen(name) == length && !strncmp(name, arch, length)) return i;
  }
  return -1;
}

/* The archs that suit a device and its driver, best first, with blanks between them. */
KW_COLD void kw_list_suitable(const kw_module *module, int capability, int has, kw_text *names) {
  int below = INT32_MAX, best;
  names->used = 0;
  do {
    best = 0;
    for (int i = 0; i < module->num_images; ++i) {
      int score = kw_usability(&module->images[i], capability, has);
      if (score < below && score > best) best = score;
    }
    for (int i = 0; best && i < module->num_images; ++i)
      if (kw_usability(&module->images[i], capability, has) == best)
        kw_append(names, "%s%s", names->used ? " " : "", module->images[i].arch);
    below = best;
  } while (best);
}

/* Asks the provider for one of the images that suit the device; without a provider it is the best one. */
KW_COLD int kw_find_file(const kw_module *module, int capability, int has, int id, kw_choice *choice) {
  kw_text names, answer;
  if (!atomic_load(kw_now.kernel->provider)) return kw_path_in_build(module->images[choice->index].file, &choice->path);
  kw_list_suitable(module, capability, has, &names);
  if (kw_ask_provider(module->variant, &names, id, capability, &answer)) return -1;
  if (*answer.data == ' ') return kw_raise("RuntimeError", "%s", answer.data + 1);
  const char *blank = strchr(answer.data, ' ');
  choice->index = blank ? kw_index_of(module, answer.data, (size_t)(blank - answer.data)) : -1;
  if (choice->index < 0) return kw_raise("RuntimeError", "the provider of device code returned '%s'", answer.data);
  choice->path.used = 0;
  kw_append(&choice->path, "%s", blank + 1);
  return 0;
}

/* Compressed code needs a driver that can decompress it. */
KW_COLD int kw_check_driver(const kw_module *module, const kw_image *image, int has) {
  int needed = kw_now.kernel->driver;
  if (has >= needed) return 0;
  return kw_raise("RuntimeError",
                  "%s of variant %s is compressed, and needs a driver for CUDA %d.%d or newer; this one is for CUDA %d.%d\n"
                  "  remedy: install a newer NVIDIA driver, or compress it less, with compress = speed",
                  image->arch, module->variant, needed / 1000, needed % 1000 / 10, has / 1000, has % 1000 / 10);
}

/* The CUDA version of the driver, or the largest number if no image of a module asks for one; -1 with an error raised. */
KW_COLD int kw_driver_version(const kw_module *module) {
  int has = INT32_MAX;
  bool asks = kw_now.kernel->driver;
  for (int i = 0; i < module->num_images; ++i) asks |= module->images[i].driver != 0;
  CUresult status = asks ? kw_cuda.version(&has) : 0;
  return status ? kw_raise_cuda(status, "asking for the version of the driver") : has;
}

/* Chooses what is loaded on a device, and makes sure that its driver can read that; the lock is not held. Returns -1
 * with an error raised if there is nothing. */
KW_COLD int kw_choose(const kw_module *module, int id, kw_choice *choice) {
  const kw_device *device = kw_get_device(id);
  int has = device ? kw_driver_version(module) : -1;
  choice->index = has >= 0 ? kw_choose_image(module, device->capability, has, id) : -1;
  if (choice->index < 0) return -1;
  bool in_file = !module->images[choice->index].data;
  if (in_file && kw_find_file(module, device->capability, has, id, choice)) return -1;
  return kw_check_driver(module, &module->images[choice->index], has);
}

#endif
